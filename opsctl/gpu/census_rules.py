"""The verdict about one process, with its evidence in words. Pure.

The order of the rules is the order of caution: what must not be touched is recognised before
what may be ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from opsctl.gpu import names
from opsctl.gpu.kinship import Claim, Kin
from opsctl.gpu.mapping import Mapped, device_words
from opsctl.gpu.model import HostProcess, Verdict


@dataclass(frozen=True)
class Finding:
    """What one process is, why, and what to do next."""

    verdict: Verdict
    evidence: tuple[str, ...]
    advice: str | None = None


@dataclass(frozen=True)
class Scene:
    """Everything the rules look at."""

    kin: Kin
    mapped: Mapped
    strays: frozenset[int] = field(default_factory=frozenset)


def judge(process: HostProcess, scene: Scene) -> Finding | None:
    """The verdict; None for a process that is neither opsctl's nor near a GPU."""
    claim = scene.kin.claims.get(process.pid)
    if not (claim or process.pid in scene.strays or _near_gpu(process, scene)):
        return None
    finding = (
        _ourselves(process, scene)
        or _zombie(process, claim, scene)
        or _protected(process)
        or _stuck(process, claim, scene)
        or _ours(process, claim, scene)
        or _stray(process, scene)
        or _foreign(process, scene)
    )
    evidence = (*finding.evidence, *_uses(process, scene))
    return Finding(finding.verdict, evidence, finding.advice)


def strays(kin: Kin, mapped: Mapped) -> frozenset[int]:
    """Processes of SGLang servers that nobody supervises, their descendants included."""
    roots = {p.pid: p for p in kin.processes.values() if _is_lost_server(p, kin)}
    proved = {
        pid: family for pid, root in roots.items() if _proved(family := _family(root, kin), mapped)
    }
    sessions = {roots[pid].session for pid in proved}
    also = (_family(root, kin) for root in roots.values() if root.session in sessions)
    members = {p.pid for family in (*proved.values(), *also) for p in family}
    return frozenset(members - set(kin.claims) - kin.ourselves)


def _is_lost_server(process: HostProcess, kin: Kin) -> bool:
    return (
        names.is_sglang(process)
        and process.state not in "ZX"
        and process.pid not in kin.claims
        and process.pid not in kin.ourselves
        and kin.adopted(process)
        and names.unit(process) is None
    )


def _proved(family: list[HostProcess], mapped: Mapped) -> bool:
    """A title is only a hint: a GPU or a port must speak for it too."""
    return any(
        names.is_sglang(member) and (member.devices or mapped.of(member.pid) or member.ports)
        for member in family
    )


def _family(root: HostProcess, kin: Kin) -> list[HostProcess]:
    found, waiting = [root], [root]
    while waiting:
        below = [p for p in kin.children.get(waiting.pop().pid, ()) if p not in found]
        found += below
        waiting += below
    return found


def _near_gpu(process: HostProcess, scene: Scene) -> bool:
    """Has the driver open, or is listed. This census's own reader does not count."""
    own_reader = names.is_helper(process) and process.ppid == scene.kin.me
    return bool(scene.mapped.of(process.pid)) or (bool(process.devices) and not own_reader)


def _ourselves(process: HostProcess, scene: Scene) -> Finding | None:
    if process.pid not in scene.kin.ourselves:
        return None
    return Finding(
        Verdict.FOREIGN, ("is this opsctl itself, or one of the processes that started it",)
    )


def _zombie(process: HostProcess, claim: Claim | None, scene: Scene) -> Finding | None:
    if process.state not in "ZX":
        return None
    parent = scene.kin.parent(process)
    who = f"{parent.pid} ({parent.title})" if parent else f"{process.ppid}, which cannot be seen"
    evidence = [f"has ended, and its parent {who} does not reap it"]
    if claim:
        evidence.append(claim.proof)
    if process.threads > 1:
        evidence.append(f"{process.threads - 1} of its threads live on, and hold what it held")
    living = _living_relatives(process, scene.kin)
    if living:
        evidence.append(f"of its process group live {', '.join(str(pid) for pid in living)}")
    return Finding(Verdict.ZOMBIE, tuple(evidence), _zombie_advice(process, living))


def _zombie_advice(process: HostProcess, living: list[int]) -> str:
    if living:
        return "no signal reaches it; its memory goes with the living processes of its group"
    if process.ppid == 1:
        return "no signal reaches it; process 1 must reap it (in a container: use an init)"
    return f"no signal reaches it; it goes when its parent {process.ppid} reaps it or ends"


def _living_relatives(process: HostProcess, kin: Kin) -> list[int]:
    return sorted(
        other.pid
        for other in kin.processes.values()
        if other.pid != process.pid
        and other.state not in "ZX"
        and other.pid not in kin.ourselves
        and process.group > 1
        and other.group == process.group
    )


def _protected(process: HostProcess) -> Finding | None:
    what = names.protected(process)
    if what is None:
        return None
    return Finding(
        Verdict.FOREIGN,
        (f"{process.comm} is {what}: opsctl never ends it",),
        "stop it by its own means if it is in the way",
    )


def _stuck(process: HostProcess, claim: Claim | None, scene: Scene) -> Finding | None:
    function, driver = process.wchan or "", names.in_driver(process.wchan or "")
    watched = claim is not None and claim.engine is not None and claim.engine.alive
    if process.state == "D" and driver:
        evidence = [f"is in uninterruptible sleep (state D) in the driver, in {function}"]
    elif process.state == "D" and not function and not watched:
        evidence = ["is in uninterruptible sleep (state D); where cannot be read"]
    elif process.state == "R" and "uvm_spin" in function and scene.kin.adopted(process):
        evidence = [f"spins in the driver, in {function}, and its parent is gone"]
    else:
        return None
    if claim:
        evidence.append(claim.proof)
    return Finding(
        Verdict.STUCK,
        tuple(evidence),
        "no signal ends it: stop the other users of its GPUs and reset them, or reboot",
    )


def _ours(process: HostProcess, claim: Claim | None, scene: Scene) -> Finding | None:
    if claim is None:
        return None
    if claim.engine is None:
        return _unrecorded(process, claim, scene.kin)
    if claim.engine.alive:
        return Finding(Verdict.MANAGED, (claim.proof,))
    advice = "`opsctl gpu reap` ends it"
    if claim.engine.main_alive:
        advice += f"; `opsctl serve --state-dir {claim.engine.where}` may take it over instead"
    return Finding(Verdict.ORPHAN, (f"{claim.proof}, and {claim.engine.gone} is gone",), advice)


def _unrecorded(process: HostProcess, claim: Claim, kin: Kin) -> Finding:
    """Ours, but no state directory that was looked at knows it: only its parents can tell."""
    parents = list(kin.ancestors(process.pid))
    for parent in parents:
        if names.is_opsctl(parent):
            who = f"and {parent.pid} ({parent.title}) above it lives"
            return Finding(Verdict.MANAGED, (claim.proof, who))
    members = [process, *takewhile(lambda parent: _of_engine(parent, claim, kin), parents)]
    top = members[-1]
    keeper = parents[len(members) - 1] if len(parents) >= len(members) else None
    if keeper is not None and kin.adopted(top):
        why = f"no opsctl is among its parents: {_adopter(top, process, keeper)}"
        return Finding(Verdict.ORPHAN, (claim.proof, why), "`opsctl gpu reap` ends it")
    if keeper is None:
        why = "its parents cannot be seen, so that nothing proves that its opsctl is gone"
        return Finding(
            Verdict.FOREIGN, (claim.proof, why), "name its state directory with --state-dir"
        )
    why = f"what started it, {keeper.pid} ({keeper.title}), lives"
    return Finding(Verdict.MANAGED, (claim.proof, why))


def _of_engine(process: HostProcess, claim: Claim, kin: Kin) -> bool:
    other = kin.claims.get(process.pid)
    return other is not None and other.nonce == claim.nonce


def _adopter(top: HostProcess, process: HostProcess, keeper: HostProcess) -> str:
    whose = "its parent" if top is process else f"the parent of its engine's process {top.pid}"
    return f"{whose} is {keeper.pid} ({keeper.comm}), which adopts orphans"


def _stray(process: HostProcess, scene: Scene) -> Finding | None:
    if process.pid not in scene.strays:
        return None
    top = _top_of_server(process, scene)
    parent = scene.kin.parent(top)
    named = f"title {process.title}" if names.is_sglang(process) else "started by an SGLang server"
    whose = "its parent" if top is process else f"the parent of its server's process {top.pid}"
    evidence = [
        f"{named}; {whose} is {parent.comm if parent else top.ppid} ({top.ppid}), and no opsctl "
        "supervises it"
    ]
    listening = sorted({port for p in (top, process) for port in p.ports})
    if listening and not names.is_sglang_child(top):
        evidence.append(f"its main process lives and listens on {_ports(listening)}: it may serve")
    return Finding(
        Verdict.STRAY, tuple(evidence), "`opsctl gpu reap --include stray` ends it with its server"
    )


def _top_of_server(process: HostProcess, scene: Scene) -> HostProcess:
    top = process
    for parent in scene.kin.ancestors(process.pid):
        if parent.pid not in scene.strays:
            break
        top = parent
    return top


def _foreign(process: HostProcess, scene: Scene) -> Finding:
    evidence = [f"belongs to {process.user}" if process.user else "belongs to another program"]
    if names.is_sglang(process):
        owner = process.user or "another user"
        evidence = [f"an SGLang process of {owner}; {_keeper(process, scene)}"]
    if process.devices is None:
        evidence.append(
            "its open files may not be read without root, so that nothing but its number says "
            "that it uses the GPU"
        )
    evidence.append("nothing says that opsctl started it")
    identity = f"foreign:{process.pid}@{process.start_time}"
    return Finding(
        Verdict.FOREIGN, tuple(evidence), f"ask its owner, or name it exactly: --include {identity}"
    )


def _keeper(process: HostProcess, scene: Scene) -> str:
    unit = names.unit(process)
    if unit is not None:
        return f"the systemd unit {unit} keeps it"
    for parent in scene.kin.ancestors(process.pid):
        if not names.is_sglang(parent):
            return f"what started it, {parent.pid} ({parent.title}), lives"
    return "who started it cannot be seen"


def _uses(process: HostProcess, scene: Scene) -> Iterator[str]:
    row = scene.mapped.of(process.pid)
    if row:
        yield f"NVML lists it on GPU {', '.join(str(gpu) for gpu in sorted(row))}"
    if process.devices:
        yield f"has {device_words(process.devices)} open"
    if process.ports:
        yield f"listens on {_ports(process.ports)}"


def _ports(ports: list[int] | tuple[int, ...]) -> str:
    return ("port " if len(ports) == 1 else "ports ") + ", ".join(str(port) for port in ports)
