"""What one release of SGLang understands: flags, environment variables, pins, models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from opsctl.errors import OpsctlError

Kind = Literal["value", "switch", "optional-switch"]


class CatalogueError(OpsctlError):
    """The flags of a release or of an installation cannot be told."""


@dataclass(frozen=True)
class Flag:
    """One flag of the server's command line; all names are without leading dashes.

    `name` is the spelling that SGLang's own settings use (`tp-size`), `aliases` every other one.
    An `optional-switch` is also accepted as `no-NAME`. `type` is one of `str`, `int`, `float`,
    `json`, `size` (an integer that may end in k, M, Ki ...), and None for a switch. `many`: takes
    several values, `bare`: may also stand without any. `default` and `choices` are text as one
    would type them. `deprecated` is what the source says to use instead; with `refused` the server
    stops at it. `where` is `file:line` in the wheel.
    """

    name: str
    aliases: tuple[str, ...]
    kind: Kind
    choices: tuple[str, ...] | None
    type: str | None
    many: bool
    default: str | None
    deprecated: str | None
    where: str
    bare: bool = False
    required: bool = False
    refused: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Every name, without the `no-` ones of an optional switch."""
        return (self.name, *self.aliases)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every spelling that argparse knows."""
        if self.kind != "optional-switch":
            return self.options
        return (*self.options, *(f"no-{option}" for option in self.options))


@dataclass(frozen=True)
class Resolution:
    """What argparse makes of an option: `candidates` are the spellings that it could mean."""

    kind: Literal["exact", "abbreviation", "ambiguous", "unknown"]
    flag: Flag | None
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """One release. `flags` has an entry for every spelling, the `no-` ones included.

    `environment` maps a variable to its default as text, None where it has none or where only a
    use of it was found; `deprecated_environment` holds what the release says of those that it
    warns of when they are set (some still work). `unread` names what could not be told without
    running SGLang, so that a flag's choices or default may be missing there.
    """

    version: str
    flags: Mapping[str, Flag]
    environment: Mapping[str, str | None]
    pins: Mapping[str, str]
    models: frozenset[str]
    deprecated_environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    unread: tuple[str, ...] = ()

    def resolve(self, option: str) -> Resolution:
        """Apply argparse's rules to an option without its value, with or without `--`.

        An exact spelling wins. Otherwise argparse collects every *spelling* that begins like
        this and refuses several, even when all of them are spellings of the same flag.
        """
        name = option.removeprefix("--")
        if (exact := self.flags.get(name)) is not None:
            return Resolution("exact", exact, (name,))
        found = tuple(spelling for spelling in self.flags if name and spelling.startswith(name))
        if len(found) > 1:
            return Resolution("ambiguous", None, found)
        if found:
            return Resolution("abbreviation", self.flags[found[0]], found)
        return Resolution("unknown", None, ())
