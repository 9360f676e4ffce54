"""Programs that start another one: what of them a profile keeps, and what it cannot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from opsctl.profiles.importer_docker import docker
from opsctl.profiles.importer_launch import (
    OTHERS,
    PYTHON,
    SYSTEMD,
    Launch,
    Wrapped,
    program,
    python_module,
    refuse_unknown,
    seen_from,
    set_variables,
    sglang_command,
)
from opsctl.profiles.importer_options import Option, options
from opsctl.profiles.importer_text import CommandTextError
from opsctl.profiles.importer_values import Value, text

Unwrapped = Wrapped | Launch | None
Wrapper = Callable[[Wrapped], Unwrapped]

_SUDO = ("-u", "--user", "-g", "--group", "-p", "--prompt", "-C", "-r", "-t", "-T", "-D", "-R")
_ENV = ("-u", "--unset", "-C", "--chdir", "-S", "--split-string")
_NUMACTL = (
    "-N", "--cpunodebind", "-m", "--membind", "-i", "--interleave", "-C", "--physcpubind",
    "-p", "--preferred", "-w", "--weighted-interleave", "-P", "--preferred-many",
)  # fmt: skip
_UV = (
    "--project", "--directory", "-p", "--python", "-w", "--with", "--with-editable",
    "--with-requirements", "--extra", "--group", "--only-group", "--no-group", "--no-extra",
    "--env-file", "-m", "--module", "--package", "--index", "--default-index", "--cache-dir",
    "--config-file", "--color", "--link-mode", "--refresh-package", "--no-sync-package",
)  # fmt: skip
_TMUX = ("-s", "-n", "-c", "-e", "-x", "-y", "-t", "-F")


def find(wrapped: Wrapped) -> Launch | None:
    """The launch in the words; None when they start something else."""
    while wrapped.words:
        name = program(wrapped.words)
        if name in OTHERS:
            raise CommandTextError(wrapped.at, f"`{name}` is not imported", hint=OTHERS[name])
        if PYTHON.fullmatch(name):
            return python_module(wrapped)
        if name == "sglang":
            return sglang_command(wrapped)
        wrapper = WRAPPERS.get(name)
        if wrapper is None:
            refuse_unknown(wrapped, name)
            return None
        inner = wrapper(wrapped)
        if not isinstance(inner, Wrapped):
            return inner
        wrapped = inner
    return None


def _dropped(why: str, *, valued: Collection[str] = (), words: int = 0) -> Wrapper:
    """A wrapper that is left out; `words` more arguments of it come before the command."""

    def unwrap(wrapped: Wrapped) -> Unwrapped:
        _, rest = options(wrapped.words[1:], valued)
        wrapped.note(f"`{program(wrapped.words)}` is left out: {why}")
        return wrapped.rest(rest[words:])

    return unwrap


def _placement(valued: Collection[str], *, words: int = 0) -> Wrapper:
    """Placement on CPUs, nodes and priorities, which a profile cannot express."""

    def unwrap(wrapped: Wrapped) -> Unwrapped:
        name = program(wrapped.words)
        _, rest = options(wrapped.words[1:], valued)
        inner = wrapped.rest(rest[words:])
        given = wrapped.words[: len(wrapped.words) - len(inner.words)]
        shown = " ".join(word.plain() for word in given)
        note = f"`{shown}` cannot be said in a profile and is lost; instead: {SYSTEMD[name]}"
        wrapped.note(note)
        return inner

    return unwrap


def _sudo(wrapped: Wrapped) -> Unwrapped:
    found, rest = options(wrapped.words[1:], _SUDO)
    user = next((o.value for o in found if o.name in {"-u", "--user"} and o.value), None)
    who = f", not as `{user.plain()}`" if user is not None else ""
    wrapped.note(f"`sudo` is left out: the engine runs as the user that opsctl runs as{who}")
    return wrapped.rest(set_variables(wrapped, rest))


def _env(wrapped: Wrapped) -> Unwrapped:
    found, rest = options(wrapped.words[1:], _ENV)
    while rest and rest[0].literal == "-":
        found, rest = [*found, Option("-i", None)], rest[1:]
    shell = wrapped.shell
    for option in found:
        if option.name in {"-i", "--ignore-environment"}:
            wrapped.environment.clear()
            wrapped.note(
                "`env -i`: opsctl inherits next to nothing either, only HOME, LANG and the like"
            )
        elif option.name in {"-u", "--unset"} and option.value is not None:
            wrapped.environment[option.value.known().plain()] = None
        elif option.name in {"-C", "--chdir"} and option.value is not None:
            shell = replace(shell, directory=seen_from(shell.directory, option.value))
        elif option.name in {"-S", "--split-string"}:
            raise CommandTextError(wrapped.at, "`env -S` is not understood", hint="leave out -S")
    return replace(wrapped, words=set_variables(wrapped, rest), shell=shell)


def _shell(wrapped: Wrapped) -> Unwrapped:
    """`bash -c 'COMMAND'`: the launch in the quoted command."""
    words = list(wrapped.words[1:])
    while words and words[0].leading.startswith("-"):
        letters = words.pop(0).leading
        if not letters.startswith("--") and "c" in letters:
            return wrapped.nested(words[0], wrapped) if words else None
    return None


def _conda(wrapped: Wrapped) -> Unwrapped:
    words = wrapped.words
    if len(words) < 2 or words[1].literal != "run":
        return None
    found, rest = options(words[2:], ("-n", "--name", "-p", "--prefix", "--cwd"))
    inner = wrapped.rest(rest)
    return replace(inner, shell=replace(wrapped.shell, python=conda_python(wrapped, found)))


def conda_python(wrapped: Wrapped, found: list[Option]) -> Value | None:
    """Interpreter of the environment that options of conda name."""
    for option in found:
        if option.value is not None and option.name in {"-p", "--prefix"}:
            path = seen_from(wrapped.shell.directory, option.value)
            return path.plus(text("/bin/python", path.at))
        if option.value is not None and option.name in {"-n", "--name"}:
            note_conda(wrapped, option.value)
    return None


def note_conda(wrapped: Wrapped, name: Value) -> None:
    """Say how to find the interpreter of an environment that is only known by name."""
    wrapped.note(
        f"conda's environment `{name.plain()}`: set `python` to what "
        f"`conda run -n {name.plain()} which python` prints"
    )


def _uv(wrapped: Wrapped) -> Unwrapped:
    words = wrapped.words
    if len(words) < 2 or words[1].literal not in {"run", "x"}:
        return None
    found, rest = options(words[2:], _UV, last=("-m", "--module"))
    directory = wrapped.shell.directory
    for option in found:
        if option.value is None:
            continue
        if option.name in {"--project", "--directory"}:
            directory = seen_from(directory, option.value)
        elif option.name in {"-m", "--module"}:
            rest = (text("python", words[0].at), text("-m", words[0].at), option.value, *rest)
        elif option.name == "--env-file":
            wrapped.note("`uv run --env-file`: write what the file sets into `environment`")
    at = words[0].at
    venv = text(".venv/bin/python", at)
    python = seen_from(directory, venv)
    wrapped.note(
        f"`uv run`: `python` is the project's environment, {python.plain()}"
        + ("" if directory is not None else "; write its absolute path")
    )
    return replace(wrapped.rest(rest), shell=replace(wrapped.shell, python=python))


def _project(wrapped: Wrapped) -> Unwrapped:
    words = wrapped.words
    if len(words) < 2 or words[1].literal != "run":
        return None
    name = program(words)
    wrapped.note(
        f"`{name} run`: set `python` to what `{name} run which python` prints in the project"
    )
    return wrapped.rest(words[2:])


def _tmux(wrapped: Wrapped) -> Unwrapped:
    words = wrapped.words
    if len(words) < 2 or words[1].literal not in {"new", "new-session"}:
        return None
    _, rest = options(words[2:], _TMUX)
    wrapped.note("`tmux` is left out: `opsctl serve` or its systemd unit keeps the engine running")
    if len(rest) == 1:
        return wrapped.nested(rest[0], wrapped)
    return wrapped.rest(rest)


_KEPT = "`opsctl serve` or its systemd unit keeps the engine running"
_MEASURED = "`opsctl events` shows how long a start took"
_PLAIN = "it does not change what the engine does"
WRAPPERS: Mapping[str, Wrapper] = {
    "sudo": _sudo,
    "doas": _sudo,
    "env": _env,
    "bash": _shell,
    "sh": _shell,
    "zsh": _shell,
    "dash": _shell,
    "nohup": _dropped(_KEPT),
    "setsid": _dropped(_KEPT),
    "screen": _dropped(_KEPT, valued=("-S", "-t", "-T", "-c", "-h", "-L")),
    "tmux": _tmux,
    "exec": _dropped(_PLAIN, valued=("-a",)),
    "command": _dropped(_PLAIN),
    "builtin": _dropped(_PLAIN),
    "time": _dropped(_MEASURED, valued=("-o", "-f", "--output", "--format")),
    "stdbuf": _dropped(
        "for output without delay set PYTHONUNBUFFERED in `environment`",
        valued=("-i", "-o", "-e", "--input", "--output", "--error"),
    ),
    "unbuffer": _dropped("for output without delay set PYTHONUNBUFFERED in `environment`"),
    "timeout": _dropped(
        "`timeouts` bounds each stage of a start; a serving engine has no end",
        valued=("-k", "-s", "--kill-after", "--signal"),
        words=1,
    ),
    "numactl": _placement(_NUMACTL),
    "taskset": _placement((), words=1),
    "nice": _placement(("-n", "--adjustment")),
    "ionice": _placement(("-c", "--class", "-n", "--classdata")),
    "chrt": _placement(("-T", "-P", "-D"), words=1),
    "prlimit": _placement(()),
    "conda": _conda,
    "mamba": _conda,
    "micromamba": _conda,
    "uv": _uv,
    "poetry": _project,
    "pdm": _project,
    "pipenv": _project,
    "docker": docker,
    "podman": docker,
    "nvidia-docker": docker,
}
"""What each known program leaves of the command it starts."""
