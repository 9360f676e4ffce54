"""`docker run ... IMAGE COMMAND`: the command as it would run on the host itself."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import replace

from opsctl.config.names import looks_secret
from opsctl.profiles.importer_launch import OTHERS, Wrapped, seen_from
from opsctl.profiles.importer_options import Option, options
from opsctl.profiles.importer_shell import Shell
from opsctl.profiles.importer_text import CommandTextError
from opsctl.profiles.importer_values import Reference, Value, is_relative, text

_SWITCHES = {
    "--detach", "--disable-content-trust", "--init", "--interactive", "--no-healthcheck",
    "--oom-kill-disable", "--privileged", "--publish-all", "--quiet", "--read-only", "--rm",
    "--sig-proxy", "--tty", "--help", "--replace", "--tls-verify",
}  # fmt: skip
_SHORT_VALUED = {"-a", "-c", "-e", "-h", "-l", "-m", "-p", "-u", "-v", "-w"}


class _Valued(Container[str]):
    """Options of docker that take a value: all but the switches."""

    def __contains__(self, name: object) -> bool:
        return name in _SHORT_VALUED or (str(name)[:2] == "--" and name not in _SWITCHES)


_ELSEWHERE = {
    "--shm-size": "the host's /dev/shm counts; give it the same size",
    "--ipc": "the engine uses the host's /dev/shm",
    "-p": "clients use `serve.listen`",
    "--publish": "clients use `serve.listen`",
    "--network": "the engine listens on loopback; clients use `serve.listen`",
    "--net": "the engine listens on loopback; clients use `serve.listen`",
    "--ulimit": "in the systemd unit `LimitMEMLOCK=`, `LimitSTACK=`, `LimitNOFILE=`",
    "--restart": "`opsctl serve` restarts the engine itself; see `serve.restart`",
    "--cpuset-cpus": "in the systemd unit `AllowedCPUs=`",
    "--cpuset-mems": "in the systemd unit `AllowedMemoryNodes=`",
    "--memory": "in the systemd unit `MemoryMax=`",
    "-m": "in the systemd unit `MemoryMax=`",
    "--user": "the engine runs as the user that opsctl runs as",
    "-u": "the engine runs as the user that opsctl runs as",
    "--cap-add": "in the systemd unit `AmbientCapabilities=`",
    "--privileged": "the engine runs as the user that opsctl runs as",
    "--device": "on the host, the devices' own permissions count",
}
"""Options without a place in a profile, and where their effect is had."""


def docker(wrapped: Wrapped) -> Wrapped | None:
    """The command inside the container, with its own variables, directory and mounts."""
    words = wrapped.words[1:]
    if words and words[0].literal == "container":
        words = words[1:]
    verb = words[0].literal if words else None
    if verb == "compose":
        raise CommandTextError(
            wrapped.at, "`docker compose` is not imported", hint=OTHERS["docker-compose"]
        )
    if verb not in {"run", "exec", "create"}:
        return None
    found, rest = options(words[1:], _Valued())
    if not rest:
        raise CommandTextError(wrapped.at, f"`docker {verb}` names no image")
    command = _command(found, rest)
    if not command:
        return None
    wrapped.note(_image_note(verb, rest[0]))
    inner = replace(wrapped, words=command, environment={}, shell=_inside(wrapped, found))
    inner.mounts = tuple(m for o in found if (m := _mount(wrapped, o)) is not None)
    for option in found:
        _take(wrapped, inner, option)
    _note_lost(wrapped, inner)
    return inner


def _command(found: Sequence[Option], rest: Sequence[Value]) -> tuple[Value, ...]:
    entrypoint = next((o.value for o in found if o.name == "--entrypoint" and o.value), None)
    if entrypoint is not None and entrypoint.literal != "":
        return (entrypoint, *rest[1:])
    if len(rest) > 1 and rest[1].leading.startswith("-"):
        raise CommandTextError(
            rest[1].at,
            "the image's own entrypoint starts the server, and what it is is not in the text",
            hint="write `--entrypoint` or the command after the image",
        )
    return tuple(rest[1:])


def _image_note(verb: str, image: Value) -> str:
    what = "image" if verb != "exec" else "container"
    return (
        f"`docker {verb}` is left out, opsctl runs the engine on the host: install what {what} "
        f"`{image.plain()}` holds, set `python` to its interpreter, and mind variables that the "
        "image itself sets"
    )


def _inside(wrapped: Wrapped, found: Sequence[Option]) -> Shell:
    """The container's shell: nothing of the outer one but what `-e` passes on."""
    directory = next((o.value for o in found if o.name in {"-w", "--workdir"}), None)
    return Shell(wrapped.shell.notes, directory=directory)


def _take(wrapped: Wrapped, inner: Wrapped, option: Option) -> None:
    value = option.value
    if option.name in {"-e", "--env"} and value is not None:
        _variable(wrapped, inner, value)
    elif option.name == "--env-file" and value is not None:
        inner.note(
            f"`--env-file {value.plain()}` is not read: write what it sets into `environment`"
        )
    elif option.name == "--gpus" and value is not None:
        _gpus(inner, value)
    elif option.name in _ELSEWHERE:
        shown = option.name if value is None else f"{option.name} {value.plain()}"
        inner.note(f"`{shown}` is left out: {_ELSEWHERE[option.name]}")


def _variable(wrapped: Wrapped, inner: Wrapped, value: Value) -> None:
    """`-e NAME=value`, or `-e NAME` for what the calling shell exports."""
    name, equals, _ = value.leading.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise CommandTextError(value.at, "not a name for an environment variable")
    if equals:
        inner.environment[name] = value.after(len(name) + 1)
    elif name in wrapped.environment:
        inner.environment[name] = wrapped.environment[name]
    else:
        default = None if looks_secret(name) else ""
        inner.environment[name] = Value((Reference(name, default),), value.at)


def _gpus(inner: Wrapped, value: Value) -> None:
    shown = value.plain().strip("\"'")
    match = re.fullmatch(r"device=([\w,-]+)", shown)
    if match is not None:
        inner.environment.setdefault("CUDA_VISIBLE_DEVICES", text(match[1], value.at))
        inner.note(f"`--gpus {shown}` is CUDA_VISIBLE_DEVICES in `environment`")
    elif shown != "all":
        inner.note(
            f"`--gpus {shown}`: say which ones in CUDA_VISIBLE_DEVICES, it is not in the text"
        )


def _mount(wrapped: Wrapped, option: Option) -> tuple[str, Value] | None:
    """Path in the container and path on the host."""
    value = option.value
    if value is None or option.name not in {"-v", "--volume", "--mount"}:
        return None
    if option.name == "--mount":
        source, target = _mount_fields(value)
    else:
        source, target = _halves(value)
    if source is None or not target:
        wrapped.note(f"`{option.name} {value.plain()}` is left out")
        return None
    if is_relative(source):
        source = seen_from(wrapped.shell.directory, source)
    shown = f"`{source.plain()}`" if source.unknown is None else "not in the text"
    wrapped.note(f"volume: `{target}` in the container is {shown} on the host")
    return target.rstrip("/") or "/", source


def _halves(value: Value) -> tuple[Value | None, str]:
    """`HOST:CONTAINER[:OPTIONS]`."""
    pieces: list[object] = list(value.pieces)
    for index, piece in enumerate(pieces):
        if isinstance(piece, str) and ":" in piece:
            before, _, after = piece.partition(":")
            tail = Value((after, *value.pieces[index + 1 :]), value.at).plain()
            head = (*value.pieces[:index], before) if before else value.pieces[:index]
            return Value(head, value.at), tail.split(":")[0]
    return None, ""


def _mount_fields(value: Value) -> tuple[Value | None, str]:
    """`type=bind,source=HOST,target=CONTAINER`."""
    fields = dict(part.partition("=")[::2] for part in value.plain().split(","))
    source = fields.get("source") or fields.get("src")
    target = fields.get("target") or fields.get("dst") or fields.get("destination") or ""
    if source is None or value.literal is None:
        return None, ""
    return text(source, value.at), target


def _note_lost(wrapped: Wrapped, inner: Wrapped) -> None:
    lost = [
        n for n, v in wrapped.environment.items() if v is not None and n not in inner.environment
    ]
    if lost:
        inner.note(
            f"exported, but not passed into the container, and so not taken over: {', '.join(lost)}"
        )
