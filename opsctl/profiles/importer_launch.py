"""The launch inside a command: what wraps it, and which interpreter runs it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from opsctl.profiles.importer_options import options
from opsctl.profiles.importer_shell import Shell
from opsctl.profiles.importer_text import At, CommandTextError
from opsctl.profiles.importer_values import Value, below, text
from opsctl.profiles.launch import MODULES

ENGINES = {module: engine for engine, module in MODULES.items()}
OTHERS = {
    "ssh": "paste the command that runs there",
    "torchrun": "SGLang starts its ranks itself: use `python -m sglang.launch_server` with "
    "`--tp-size`, and for several hosts `--nnodes`, `--node-rank` and `--dist-init-addr`",
    "torch.distributed.run": "SGLang starts its ranks itself: use `python -m sglang.launch_server`",
    "torch.distributed.launch": "SGLang starts its ranks itself: use "
    "`python -m sglang.launch_server`",
    "mpirun": "one profile starts one engine on one host; paste the command of one rank",
    "srun": "one profile starts one engine on one host; paste the command that the job runs",
    "accelerate": "SGLang starts its ranks itself: use `python -m sglang.launch_server`",
    "deepspeed": "SGLang starts its ranks itself: use `python -m sglang.launch_server`",
    "vllm": "vLLM's flags mean other things than SGLang's",
    "vllm.entrypoints.openai.api_server": "vLLM's flags mean other things than SGLang's",
    "sglang_router.launch_router": "a router is not an engine; paste the engine's command",
    "sglang_router.launch_server": "router and engines in one; paste the engine's own command",
    "docker-compose": "paste the service's `command:` with its variables before it",
    "systemd-run": "paste the command that it runs",
}
PYTHON = re.compile(r"python(3(\.\d+)?)?t?")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")

SYSTEMD = {
    "numactl": "the flag `numa-node` or the variable SGLANG_SET_CPU_AFFINITY=1, or in the systemd "
    "unit `CPUAffinity=`, `NUMAPolicy=` and `NUMAMask=`",
    "taskset": "the variable SGLANG_SET_CPU_AFFINITY=1, or in the systemd unit `CPUAffinity=`",
    "nice": "in the systemd unit `Nice=`",
    "ionice": "in the systemd unit `IOSchedulingClass=` and `IOSchedulingPriority=`",
    "chrt": "in the systemd unit `CPUSchedulingPolicy=` and `CPUSchedulingPriority=`",
    "prlimit": "in the systemd unit `LimitNOFILE=`, `LimitMEMLOCK=` and the like",
}
"""Wrappers that a profile cannot express, and where their effect is had instead."""


@dataclass(frozen=True)
class Launch:
    """An engine's command, freed of what stood around it."""

    at: At
    engine: str
    python: Value | None
    arguments: tuple[Value, ...]
    environment: Mapping[str, Value | None]
    directory: Value | None
    mounts: tuple[tuple[str, Value], ...] = ()
    positional_model: bool = False


@dataclass
class Wrapped:
    """Words that are left, in the environment and directory they run in."""

    words: tuple[Value, ...]
    environment: dict[str, Value | None]
    shell: Shell
    nested: Callable[[Value, Wrapped], Launch | None]
    """Finds the launch in a command that stands quoted in this one."""
    mounts: tuple[tuple[str, Value], ...] = ()

    @property
    def at(self) -> At:
        """Where the words start."""
        return self.words[0].at

    def note(self, what: str) -> None:
        """Add to the notes of the import."""
        self.shell.notes.add(what)

    def rest(self, words: Sequence[Value]) -> Wrapped:
        """The same with other words."""
        return replace(self, words=tuple(words))


def program(words: Sequence[Value]) -> str:
    """Base name of the program that the words start, as far as it is known text."""
    return posixpath.basename(words[0].plain()) if words else ""


def refuse_unknown(wrapped: Wrapped, name: str) -> None:
    """Raise CommandTextError when an unknown program stands in front of a launch."""
    pairs = list(pairwise(word.literal or "" for word in wrapped.words))
    starts = any(a == "-m" and b in ENGINES for a, b in pairs)
    if starts or any(posixpath.basename(a) == "sglang" and b == "serve" for a, b in pairs):
        what = f"`{name}` in front of the launch is not understood" if name else "not understood"
        raise CommandTextError(wrapped.at, what, hint="leave it out, or say it another way")


def python_module(wrapped: Wrapped) -> Launch | None:
    """`python -m sglang.launch_server`; None for what else Python may run."""
    words = wrapped.words
    found, rest = options(words[1:], ("-X", "-W", "-m", "-c"), last=("-m", "-c"))
    module = next((o.value for o in found if o.name == "-m"), None)
    name = module.literal if module is not None else None
    if name is None:
        _refuse_script(rest)
        return None
    if name in OTHERS:
        raise CommandTextError(wrapped.at, f"`{name}` is not imported", hint=OTHERS[name])
    if name not in ENGINES:
        return None
    for option in found:
        if option.name != "-m":
            more = '; for output without delay set PYTHONUNBUFFERED: "1" in `environment`'
            wrapped.note(
                f"the interpreter's option `{option.name}` is left out: a profile has none"
                + (more if option.name == "-u" else "")
            )
    return _launch(wrapped, ENGINES[name], words[0], rest, positional=False)


def _refuse_script(rest: Sequence[Value]) -> None:
    script = rest[0].literal if rest else None
    if script is not None and posixpath.basename(script) == "launch_server.py":
        raise CommandTextError(
            rest[0].at, "a script started by its path", hint="use `-m sglang.launch_server`"
        )


def sglang_command(wrapped: Wrapped) -> Launch | None:
    """`sglang serve MODEL`; None for its other verbs."""
    words = wrapped.words
    if len(words) < 2 or words[1].literal != "serve":
        return None
    binary = words[0]
    python = None
    if "/" in binary.plain():
        cut = len(binary.leading) - len("sglang")
        python = Value((binary.leading[:cut] + "python",), binary.at) if cut >= 0 else None
    return _launch(wrapped, "sglang", python, words[2:], positional=True)


def _launch(
    wrapped: Wrapped, engine: str, python: Value | None, rest: Sequence[Value], *, positional: bool
) -> Launch:
    return Launch(
        at=wrapped.at,
        engine=engine,
        python=_interpreter(wrapped, python),
        arguments=tuple(rest),
        environment=wrapped.environment,
        directory=wrapped.shell.directory,
        mounts=wrapped.mounts,
        positional_model=positional,
    )


def _interpreter(wrapped: Wrapped, python: Value | None) -> Value | None:
    """The interpreter's path; a bare name is the one of the activated environment, if any."""
    directory = wrapped.shell.directory
    if python is not None and "/" in python.plain():
        absolute = python.leading.startswith("/") or not python.leading
        if absolute or directory is None:
            if not absolute:
                wrapped.note("`python` is a relative path; write an absolute one")
            return python
        return below(directory, python)
    if wrapped.shell.python is not None:
        return wrapped.shell.python
    bare = python if python is not None else text("python", wrapped.at)
    wrapped.note(
        f"`{bare.plain()}` is looked up in PATH: write the absolute path of the interpreter "
        "that has SGLang in `python`"
    )
    return bare


def set_variables(wrapped: Wrapped, words: Sequence[Value]) -> tuple[Value, ...]:
    """Put leading `NAME=value` words into the environment; the words that follow."""
    index = 0
    for word in words:
        name, equals, _ = word.leading.partition("=")
        if not equals:
            break
        if not _ASSIGNMENT.fullmatch(f"{name}="):
            raise CommandTextError(word.at, "not a name for an environment variable")
        wrapped.environment[name] = word.after(len(name) + 1)
        index += 1
    return tuple(words[index:])


def seen_from(directory: Value | None, path: Value) -> Value:
    """A path of the command, where its working directory is known; it has to be a path."""
    if directory is None or path.leading[:1] in {"", "/"}:
        return path
    return below(directory, path)
