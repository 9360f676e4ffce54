"""What serving needs besides the GPUs: checkpoints, ports, caches, NCCL's settings. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.doctor.checks.system import gib
from opsctl.doctor.host import Facts, Model, ProfileFacts
from opsctl.doctor.model import Verdict, check, fail, ok, unknown, warn

NETWORK = frozenset({"nfs", "nfs4", "gpfs", "lustre", "cifs", "smb3", "ceph", "beegfs", "9p"})


@check(
    "nccl-environment",
    "NCCL's variables are meant as they are",
    severity="fail",
    reads=("profiles",),
    wanted="files that are named exist; peer-to-peer and protocol not forced without a reason",
    why="a file that is not there ends the start; forced settings cost throughput unnoticed",
    source="environment of the profiles; rtx6kpro wiki",
    fix="manual: correct the profile's environment, or leave it if it was measured",
)
def nccl_environment(facts: Facts) -> Verdict:
    """Judge the NCCL variables of every profile."""
    absent = [f"{p.name}: {name}" for p in facts.profiles for name in p.missing_files]
    if absent:
        return fail(f"names a file that is not there: {', '.join(absent)}")
    forced = [text for profile in facts.profiles for text in _forced(profile)]
    if forced:
        return warn("; ".join(forced))
    return ok("nothing forced") if facts.profiles else unknown("no profile runs SGLang")


def _forced(profile: ProfileFacts) -> Iterator[str]:
    values = profile.environment
    if values.get("NCCL_P2P_DISABLE", "0") != "0":
        yield f"{profile.name}: NCCL_P2P_DISABLE={values['NCCL_P2P_DISABLE']}"
    if "NCCL_PROTO" in values:
        yield f"{profile.name}: NCCL_PROTO={values['NCCL_PROTO']}"
    if "libnccl" in values.get("LD_PRELOAD", ""):
        yield f"{profile.name}: LD_PRELOAD={values['LD_PRELOAD']}"


@check(
    "checkpoint",
    "The checkpoints are complete and can be loaded",
    severity="fail",
    reads=("models",),
    uses=("stacks",),
    wanted="all shards of the index there, a known architecture, a local file system",
    why="a missing shard is found after minutes of loading",
    source="model.safetensors.index.json, config.json",
    fix="opsctl provision --tags model_store",
)
def checkpoint(facts: Facts) -> Verdict:
    """Judge the folder of every model and draft that a profile names by path."""
    if not facts.models:
        return unknown("no profile names a checkpoint by its folder")
    bad = [text for model in facts.models if (text := _broken(model, facts))]
    if bad:
        return fail("; ".join(bad))
    blank = [model.path for model in facts.models if not model.bytes]
    if blank:
        return unknown(f"no safetensors in {', '.join(blank)}")
    remote = [f"{x.path} on {x.file_system}" for x in facts.models if x.file_system in NETWORK]
    if remote:
        return warn("; ".join(remote), why="every start reads all of it over the network")
    return ok(", ".join(f"{x.path}: {gib(x.bytes or 0)}" for x in facts.models))


def _broken(model: Model, facts: Facts) -> str | None:
    if not model.there:
        return f"{model.path} is not there"
    if model.missing:
        return f"{model.path}: {len(model.missing)} shards missing, first {model.missing[0]}"
    if model.bytes is not None and model.expected is not None and model.bytes < model.expected:
        return f"{model.path}: {gib(model.bytes)} of {gib(model.expected)}"
    known = next((x.models for x in facts.stacks if x.python == model.python), frozenset())
    strange = [name for name in model.architectures if known and name not in known]
    if strange:
        return f"{model.path}: {', '.join(strange)} is not a model of this SGLang"
    return None


@check(
    "ports",
    "The ports are free",
    severity="fail",
    reads=("ports",),
    wanted="free, or held by opsctl itself",
    why="SGLang finds a taken port only after it has loaded the model, and may hang then",
    source="serve.listen, serve.engine_port and the profiles' flags; bind()",
    fix="manual: stop who holds it, or set another port",
)
def ports(facts: Facts) -> Verdict:
    """Judge every port the configuration names."""
    if not facts.ports:
        return unknown("the configuration names no port")
    taken = [port for port in facts.ports if not port.free and not port.ours]
    if taken:
        return fail(
            "; ".join(f"{port.use}: {port.holder or f'{port.port} taken'}" for port in taken)
        )
    told = (f"{x.port} {'free' if x.free else 'held by opsctl'} ({x.use})" for x in facts.ports)
    return ok(", ".join(told))


@check(
    "jit-cache",
    "The caches of compiled kernels can be used",
    severity="fail",
    reads=("caches",),
    wanted="writable by the user who serves, on a local disk, no lock of a dead builder",
    why="a stale lock holds up every start; on a network disk compiling takes an hour and more",
    source="flashinfer-ai/flashinfer issue 972; sglang#7339",
    fix="opsctl gpu reap --clear-jit-locks; chown -R the folder to the user who serves",
)
def jit_cache(facts: Facts) -> Verdict:
    """Judge owner, file system and locks of every cache."""
    if not facts.caches:
        return unknown("it cannot be told who serves")
    closed = [
        f"{x.path}: {x.user} may not write" + (f" (owned by {x.owner})" if x.owner else "")
        for x in facts.caches
        if not x.writable
    ]
    stale = [lock for cache in facts.caches for lock in cache.stale_locks]
    if closed or stale:
        return fail("; ".join([*closed, *(f"stale lock {lock}" for lock in stale)]))
    remote = [f"{x.path} on {x.file_system}" for x in facts.caches if x.file_system in NETWORK]
    return (
        warn("; ".join(remote)) if remote else ok(f"{len(facts.caches)} folders of {_users(facts)}")
    )


def _users(facts: Facts) -> str:
    return ", ".join(sorted({cache.user for cache in facts.caches}))


CHECKS = (nccl_environment, checkpoint, ports, jit_cache)
