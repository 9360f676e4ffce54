"""A pasted launch command as a launch profile, with notes about what could not be taken over.

The text is read as a shell would read it, but nothing is run and nothing is read from disk:

    words and operators (importer_lexer) -> variables and arguments (importer_shell) ->
    the command that launches (importer_script) -> without what wraps it (importer_wrappers,
    importer_docker) -> the engine's arguments (importer_flags) -> a profile (here)

The profile gives the same arguments and variables back (`opsctl profile show --shell`), apart from
what opsctl owns. A secret of the text is never repeated: the profile refers to where it should be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from opsctl.config.names import looks_secret
from opsctl.config.schema import LaunchProfile
from opsctl.errors import UsageError
from opsctl.profiles.importer_flags import Arguments, read, scalar
from opsctl.profiles.importer_launch import Launch
from opsctl.profiles.importer_paths import Paths, with_tilde
from opsctl.profiles.importer_script import launch
from opsctl.profiles.importer_text import At, CommandTextError, Notes
from opsctl.profiles.importer_values import Value, escaped

__all__ = ["CommandTextError", "Imported", "parse"]

_FILE_READ = re.compile(r"\s*(?:cat|head\s+-n\s*1|head\s+-1|<)\s+(?:--\s+)?(\S.*?)\s*")
_FILE_NAME = re.compile(r"""(?:"\$HOME"|\$HOME|\$\{HOME\}|~)(/[\w./-]+)|(/[\w./-]+)""")
_CREDENTIAL = re.compile(
    r"""(?:"\$CREDENTIALS_DIRECTORY"|\$\{?CREDENTIALS_DIRECTORY\}?)/([\w.:-]+)"""
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Imported:
    """A profile made of a pasted command."""

    name: str
    profile: LaunchProfile
    """Values as they are; references to variables stand in them as text, `${NAME}`."""
    notes: tuple[str, ...]
    """What was left out, changed or could not be known; one line each."""
    written: Mapping[str, Any]
    """The profile as plain data for opsctl.yaml: what was given only, `$` of values as `$$`."""


def parse(text: str, *, name: str | None = None) -> Imported:
    """The profile of a pasted command; raises CommandTextError with the place of what is wrong.

    `name` is the profile's; without it, it is made from the model's.
    """
    notes = Notes()
    found = launch(text, notes)
    arguments = read(found, notes)
    if "model" not in arguments.keys:
        raise CommandTextError(found.at, "the launch names no model (`--model-path`)")
    paths = Paths(found.directory, found.mounts, notes)
    chosen = name if name is not None else _name(arguments.keys)
    if not NAME.fullmatch(chosen):
        raise UsageError("a profile's name is up to 64 letters, digits, `-`, `_` and `.`")
    plain = _content(found, arguments, paths, Value.plain)
    written = _content(found, arguments, paths, Value.written)
    return Imported(chosen, _profile(plain, found.at), tuple(notes.seen), written)


def _profile(content: Mapping[str, Any], at: At) -> LaunchProfile:
    try:
        return LaunchProfile.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][:2])
        raise CommandTextError(at, f"{where}: {first['msg']}") from None


def _content(
    found: Launch, arguments: Arguments, paths: Paths, form: Callable[[Value], str]
) -> dict[str, Any]:
    """The profile's keys in the order of the schema; `form` puts values into text."""
    content: dict[str, Any] = {}
    if found.engine != "sglang":
        content["engine"] = found.engine
    if found.python is not None:
        content["python"] = _path(found.python.known(), form)
    for key in ("model", "draft_model", "served_name"):
        value = arguments.keys.get(key)
        if value is not None:
            _note_references(key, value, paths.notes)
            content[key] = (
                form(value) if key == "served_name" else _path(paths.model(value, key), form)
            )
    if arguments.flags:
        for flag, values in arguments.flags.items():
            for value in values:
                _note_references(f"--{flag}", value, paths.notes)
        content["flags"] = {
            flag: _flag(tuple(map(paths.argument, values)), form)
            for flag, values in arguments.flags.items()
        }
    environment = _environment(found, paths, form)
    if environment:
        content["environment"] = environment
    return content


def _path(value: Value, form: Callable[[Value], str]) -> str:
    tilde = with_tilde(value)
    return form(value) if tilde is None else tilde


def _flag(values: tuple[Value, ...], form: Callable[[Value], str]) -> Any:
    if not values:
        return True
    made = [_typed(value, form) for value in values]
    if len(made) == 1:
        return made[0]
    return [form(v) if isinstance(m, dict) else m for v, m in zip(values, made, strict=True)]


def _typed(value: Value, form: Callable[[Value], str]) -> Any:
    made = scalar(value)
    if isinstance(made, str):
        return form(value)
    if isinstance(made, dict) and form is Value.written:
        return _escaped(made)
    return made


def _escaped(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _escaped(item) for key, item in content.items()}
    if isinstance(content, list):
        return [_escaped(item) for item in content]
    return escaped(content) if isinstance(content, str) else content


def _environment(
    found: Launch, paths: Paths, form: Callable[[Value], str]
) -> dict[str, str | dict[str, str] | None]:
    made: dict[str, str | dict[str, str] | None] = {}
    for name, value in found.environment.items():
        if value is None:
            made[name] = None
            continue
        secret = _secret(name, value, paths.notes)
        if secret is not None:
            made[name] = secret
        elif value.known().literal == "":
            paths.notes.add(f"`{name}` is set, but empty: opsctl removes it instead")
            made[name] = None
        elif name != "PATH" or not _as_opsctl_makes_it(found, value, paths.notes):
            _note_references(name, value, paths.notes)
            made[name] = form(paths.variable(name, value))
    return made


def _as_opsctl_makes_it(found: Launch, path: Value, notes: Notes) -> bool:
    """Whether PATH only gets the interpreter's own directory in front, which opsctl does, too."""
    python = found.python.plain() if found.python is not None else ""
    own = python.rpartition("/")[0]
    if own and path.plain() == f"{own}:${{PATH:-}}":
        return True
    if own and own not in path.plain().split(":"):
        notes.add(
            f"`PATH` is set without {own}, where `ninja` and other tools of the interpreter's "
            "environment are"
        )
    return False


def _note_references(what: str, value: Value, notes: Notes) -> None:
    for reference in value.references():
        if reference.name == "HOME":
            continue
        must = "it must be set for opsctl" if reference.default is None else "if it is set there"
        must += ", else its default" if reference.default else ""
        notes.add(f"`{what}` takes ${reference.name} from opsctl's own environment; {must}")


def _secret(name: str, value: Value, notes: Notes) -> dict[str, str] | None:
    """A reference for what is a secret by its name, by its looks or by where it comes from."""
    stored = _stored(value)
    if stored is not None:
        return stored
    reference = value.reference
    if reference is not None and reference.default is None and looks_secret(reference.name):
        return {"env": reference.name}
    mentions = any(looks_secret(found.name) for found in value.references())
    if value.literal == "" or not (looks_secret(name) or mentions or value.holds_secret()):
        return None
    if reference is not None and not reference.default:
        return {"env": reference.name}
    notes.add(
        f"`{name}` looks like a secret and is not repeated: export it for opsctl as {name}, or "
        f"write `{name}: {{file: PATH}}`"
    )
    return {"env": name}


def _stored(value: Value) -> dict[str, str] | None:
    """`$(cat FILE)` and the like as a reference to the file."""
    unknown = value.unknown
    match = _FILE_READ.fullmatch(unknown.text) if unknown is not None and unknown.text else None
    if match is None:
        return None
    named = match[1]
    if len(named) > 1 and named[0] == named[-1] and named[0] in "\"'":
        named = named[1:-1]
    credential = _CREDENTIAL.fullmatch(named)
    if credential is not None:
        return {"credential": credential[1]}
    path = _FILE_NAME.fullmatch(named)
    if path is None:
        return None
    return {"file": f"~{path[1]}" if path[1] else path[2]}


def _name(keys: Mapping[str, Value]) -> str:
    """A name for the profile: the one that clients use for the model, or the model's own."""
    for key in ("served_name", "model"):
        literal = keys[key].literal if key in keys else None
        last = (literal or "").rstrip("/").rpartition("/")[2].lower()
        made = re.sub(r"[^a-z0-9_.-]+", "-", last).strip("-._")[:64]
        if made:
            return made
    return "imported"
