"""An engine's arguments as a profile's keys: flags, and what opsctl owns of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from opsctl.config.flags import OWNED, canonical, refusal
from opsctl.config.names import looks_secret
from opsctl.config.scalars import Unclear, resolve_plain
from opsctl.profiles.importer_launch import Launch
from opsctl.profiles.importer_shell import may_be_many
from opsctl.profiles.importer_text import CommandTextError, Notes
from opsctl.profiles.importer_values import Value

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_REFUSED = {
    "config": "its flags are in another file; write them out",
    "help": "the engine would print its help and end",
    "version": "the engine would print its version and end",
}
_DROPPED = {
    "host": "`--host` is left out: the engine listens on loopback; clients use `serve.listen`",
    "port": "`--port` is left out: opsctl picks it (`serve.engine_port`); clients use "
    "`serve.listen`",
    "enable-metrics": "`--enable-metrics` is left out: opsctl always sets it",
    "gated-launch-port": "`--gated-launch-port` is left out: opsctl decides it",
    "api-key": "`--api-key` is left out and its value not repeated: put the key that clients send "
    "into a file and refer to it in `serve.gateway.api_key: {file: PATH}`",
    "admin-api-key": "`--admin-api-key` is left out and its value not repeated: the engine only "
    "listens on loopback, and opsctl's own verbs use its control socket",
    "ssl-keyfile-password": "`--ssl-keyfile-password` is left out and its value not repeated: "
    "engine and gateway talk over loopback, TLS belongs in front of `serve.listen`",
}
_KEYS = {
    "model-path": "model",
    "model": "model",
    "served-model-name": "served_name",
    "speculative-draft-model-path": "draft_model",
    "speculative-draft-model": "draft_model",
}
_SWITCHES = {"enable-metrics"}


@dataclass
class Arguments:
    """What the arguments say, in the terms of a profile."""

    keys: dict[str, Value] = field(default_factory=dict)
    flags: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    """Values by flag, in the order in which they count; none for a bare flag."""


def read(launch: Launch, notes: Notes) -> Arguments:
    """The engine's arguments; raises CommandTextError for what the engine would not take."""
    found = Arguments()
    words = list(launch.arguments)
    if launch.positional_model and words and not words[0].leading.startswith("-"):
        found.keys["model"] = words.pop(0)
    while words:
        flag, values = _next(words)
        owner = _owner(flag)
        if owner is None:
            _add(found, flag, values, notes)
        else:
            _take_owned(found, owner, flag, values, notes)
    return found


def is_option(word: Value) -> bool:
    """Whether argparse takes the word for a flag: not for a negative number, nor with a blank."""
    start = word.leading
    return (
        start[:1] == "-"
        and len(start) > 1
        and not _NEGATIVE.fullmatch(word.plain())
        and (" " not in word.plain() or "=" in start.split(" ", maxsplit=1)[0])
    )


@dataclass(frozen=True)
class _Flag:
    """A flag as it was written, and where."""

    name: str
    word: Value

    def error(self, what: str, hint: str | None = None) -> CommandTextError:
        return CommandTextError(self.word.at, f"`--{self.name}`: {what}", hint=hint)


def _next(words: list[Value]) -> tuple[_Flag, tuple[Value, ...]]:
    """Take one flag and its values off the front."""
    word = words.pop(0)
    if not is_option(word):
        raise _stray(word)
    name, equals, _ = word.leading.partition("=")
    if not equals and len(word.pieces) > 1:
        raise CommandTextError(word.at, "a flag whose name is not plain text")
    if not re.fullmatch(r"--[A-Za-z][A-Za-z0-9_-]*", name):
        hint = f"write -{name}" if re.fullmatch(r"-[A-Za-z][\w-]+", name) else None
        raise CommandTextError(word.at, "this is no flag of SGLang", hint=hint)
    flag = _Flag(name[2:], word)
    if equals:
        return flag, (word.after(len(name) + 1),)
    values: list[Value] = []
    while words and not is_option(words[0]):
        values.append(words.pop(0))
    for value in values:
        if may_be_many(value):
            raise _stray(value)
    return flag, tuple(values)


def _stray(word: Value) -> CommandTextError:
    if word.references():
        return CommandTextError(
            word.at, "what this variable holds is not in the text", hint="write the flags out"
        )
    return CommandTextError(
        word.at, "a value that belongs to no flag", hint="is the flag before it missing?"
    )


def _owner(flag: _Flag) -> str | None:
    """The flag of opsctl's that this one is, or abbreviates as argparse allows."""
    name = canonical(flag.name)
    if name in OWNED:
        return name
    return next((o for o in OWNED if refusal(name) and o.startswith(name)), None)


def _take_owned(
    found: Arguments, owner: str, flag: _Flag, values: tuple[Value, ...], notes: Notes
) -> None:
    if owner in _REFUSED:
        raise flag.error(_REFUSED[owner])
    if owner != canonical(flag.name):
        notes.add(f"`--{flag.name}` is taken for `--{owner}`")
    if len(values) != (owner not in _SWITCHES):
        raise flag.error("takes no value" if owner in _SWITCHES else "takes one value")
    if owner in _DROPPED:
        notes.add(_DROPPED[owner])
        return
    key = _KEYS[owner]
    if key in found.keys:
        notes.add(f"`--{owner}` is given more than once; the last one counts")
    if values[0].literal == "":
        raise flag.error("is empty")
    found.keys[key] = _public(flag, values)[0]


def _add(found: Arguments, flag: _Flag, values: tuple[Value, ...], notes: Notes) -> None:
    name = canonical(flag.name)
    if name != flag.name:
        notes.add(f"`--{flag.name}` is written `{name}`, as SGLang prints it")
    if name in found.flags:
        notes.add(f"`--{name}` is given more than once; the last one counts")
        del found.flags[name]  # so that it keeps its place among its aliases, too
    found.flags[name] = _public(flag, values)


def _public(flag: _Flag, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values; raises CommandTextError for a secret, which every user of the host could read."""
    for value in values:
        secret = any(looks_secret(reference.name) for reference in value.references())
        if secret or value.holds_secret() or looks_secret(flag.name.replace("-", "_")):
            raise flag.error(
                "a secret in the command line can be read by every user of the host",
                "leave the flag out, and give the secret to the engine in `environment`",
            )
        value.known()
    return values


def scalar(value: Value) -> int | float | str | dict[str, Any]:
    """The value as YAML would have it, if the engine then gets exactly the same text."""
    literal = value.literal
    if literal is None:
        return value.plain()
    if literal.startswith("{"):
        return _mapping(literal)
    return number(literal)


def number(literal: str) -> int | float | str:
    """A number when it is written just as one prints, else the text."""
    try:
        read = resolve_plain(literal)
    except Unclear:
        return literal
    if isinstance(read, bool) or not isinstance(read, int | float) or str(read) != literal:
        return literal
    return read


def _mapping(literal: str) -> dict[str, Any] | str:
    """JSON as a mapping when it is spaced as opsctl writes it, else the text."""
    try:
        content = json.loads(literal, parse_constant=_refuse_constant)
        same = json.dumps(content, ensure_ascii=False) == literal
    except (ValueError, RecursionError):
        return literal
    return content if same and _is_plain(content, 0) else literal


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _is_plain(content: Any, depth: int) -> bool:
    """Whether YAML holds the content without loss: not too deep, no odd characters or numbers."""
    if isinstance(content, dict):
        keys = all(_is_plain(key, depth) for key in content)
        return depth < 12 and keys and all(_is_plain(v, depth + 1) for v in content.values())
    if isinstance(content, list):
        return depth < 12 and all(_is_plain(item, depth + 1) for item in content)
    if isinstance(content, str):
        return not re.search("[\ud800-\udfff\0]", content)
    if isinstance(content, int | float) and not isinstance(content, bool):
        return number(str(content)) == content
    return True
