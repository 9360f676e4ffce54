"""Paths of a pasted command as they are on the host, wherever opsctl is started."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opsctl.profiles.importer_text import Notes
from opsctl.profiles.importer_values import Reference, Value, below, is_relative, text

_FILE = re.compile(r"(?!.*://)[^/{\[].*\.(jinja2?|json|ya?ml|txt|py|pt|pth|bin|safetensors|gguf)")
_LISTS = re.compile(r".*PATH")


@dataclass(frozen=True)
class Paths:
    """The directory a command ran in, and what a container called the host's directories."""

    directory: Value | None
    mounts: tuple[tuple[str, Value], ...]
    notes: Notes

    def model(self, value: Value, key: str) -> Value:
        """A model: a path, or a name to download that only looks like one."""
        moved = self.argument(value)
        ambiguous = moved == value and "/" in value.plain() and value.leading[:1] not in {"", "/"}
        if ambiguous and self.directory is not None:
            there = below(self.directory, value).plain()
            self.notes.add(f"`{key}` is taken for a name to download; if it is a path: {there}")
        return moved

    def argument(self, value: Value) -> Value:
        """A flag's value, changed where it is a path beyond doubt."""
        if is_relative(value) or (value.literal is not None and _FILE.fullmatch(value.literal)):
            return self._resolved(value)
        return self._mounted(value)

    def variable(self, name: str, value: Value) -> Value:
        """A variable's value; a search path is a list of paths."""
        if not _LISTS.fullmatch(name) or value.literal is None:
            return self.argument(value) if is_relative(value) else self._mounted(value)
        parts = [self.variable("", text(part, value.at)) for part in value.literal.split(":")]
        joined = parts[0]
        for part in parts[1:]:
            joined = joined.plus(text(":", value.at)).plus(part)
        return joined

    def _resolved(self, value: Value) -> Value:
        if self.directory is None:
            self.notes.add(
                f"`{value.plain()}` is relative to the directory the command ran in: write an "
                "absolute path"
            )
            return value
        moved = self._mounted(below(self.directory, value))
        self.notes.add(f"`{value.plain()}` is `{moved.plain()}`, seen from the directory of `cd`")
        return moved

    def _mounted(self, value: Value) -> Value:
        """A path in the container as the path on the host."""
        start = value.leading
        inside = [
            (target, source)
            for target, source in self.mounts
            if start == target or start.startswith(target.rstrip("/") + "/")
        ]
        if not inside:
            return value
        target, source = max(inside, key=lambda mount: len(mount[0]))
        moved = source.known().plus(value.after(len(target.rstrip("/"))))
        self.notes.add(f"`{value.plain()}` in the container is `{moved.plain()}` on the host")
        return moved


def with_tilde(value: Value) -> str | None:
    """`~/...` for a path below the home directory, which opsctl expands; None for other values."""
    first, *rest = value.pieces or ("",)
    tail = Value(tuple(rest), value.at)
    if first == Reference("HOME", None) and tail.leading.startswith("/"):
        return "~" + tail.plain() if tail.literal is not None else None
    return None
