"""Surfaces of several profiles in one file, and which two of them are compared. Pure.

`tune` writes one file for each profile. A published table has both profiles of a host side by side,
often of several hosts: one file holds them as *cases*, so that a name picks the pair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opsctl.autospec.surface import SCHEMA as ONE
from opsctl.autospec.surface import Surface
from opsctl.errors import UsageError

SCHEMA = "opsctl/surfaces/v1"


class Case(BaseModel):
    """Surfaces that belong together: one host, one model, several profiles."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    case: str = ""
    source: str = ""
    surfaces: tuple[Surface, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Roles:
    """Names of the profiles that a person gave a role; None leaves it to what is known."""

    speculative: str | None = None
    baseline: str | None = None


@dataclass(frozen=True)
class Chosen:
    """The two surfaces that are compared, and what was decided without being asked."""

    speculative: Surface
    baseline: Surface
    notes: tuple[str, ...] = ()


def dump(cases: Sequence[Case]) -> str:
    """Return the file: a single surface as `tune` writes it, one case, or several."""
    if len(cases) == 1 and len(cases[0].surfaces) == 1:
        content = _plain(cases[0])["surfaces"][0]
    elif len(cases) == 1:
        content = {"schema": SCHEMA, **_plain(cases[0])}
    else:
        content = {"schema": SCHEMA, "cases": [_plain(case) for case in cases]}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def parse(content: Any, where: str) -> tuple[Case, ...]:
    """Read what `dump` writes, from its JSON; raises UsageError naming `where`."""
    schema = content.get("schema") if isinstance(content, dict) else None
    try:
        if schema == ONE:
            return (Case(surfaces=(Surface.model_validate(content),)),)
        if schema == SCHEMA:
            rest = {key: value for key, value in content.items() if key != "schema"}
            found = rest.get("cases", [rest])
            if not isinstance(found, list) or not found:
                raise UsageError(f"{where}: `cases` holds no case")
            return tuple(Case.model_validate(case) for case in found)
    except ValidationError as error:
        faults = "\n".join(_fault(where, detail) for detail in error.errors()[:FAULTS])
        raise UsageError(faults, hint="`opsctl tune` writes one from a measurement") from error
    raise UsageError(f"{where}: schema {schema!r} is not one of {ONE}, {SCHEMA}")


def one_case(cases: Sequence[Case], name: str | None, where: str) -> Case:
    """Return the case called `name`, or the only one; raises UsageError listing the names."""
    names = ", ".join(case.case for case in cases)
    if name is None:
        if len(cases) == 1:
            return cases[0]
        raise UsageError(f"{where} holds several cases: {names}", hint="choose one with --case")
    found = [case for case in cases if case.case == name]
    if found:
        return found[0]
    hint = f"it holds {names}" if names else "its only case has no name: leave --case out"
    raise UsageError(f"{where}: no case {name!r}", hint=hint)


def speculates(name: str) -> bool | None:
    """Guess from a profile's name whether it drafts; None when the name does not tell."""
    if _WITHOUT.search(name):
        return False
    return True if _DRAFTS.search(name) else None


def choose(surfaces: Sequence[Surface], roles: Roles) -> Chosen:
    """Return the pair; raises UsageError when it is not clear which two are meant.

    Of several speculative surfaces the one with the most points is taken, and said: tables often
    list a second draft, or another prompt, at a single place.
    """
    names = [surface.profile for surface in surfaces]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two surfaces of the profile {twice[0]}", hint="give one of each")
    drafts = [surface for surface in surfaces if surface.speculative]
    plain = [surface for surface in surfaces if not surface.speculative]
    speculative, note = _one(surfaces, roles.speculative, drafts, "speculative")
    baseline, other = _one(surfaces, roles.baseline, plain, "baseline")
    if speculative is baseline:
        raise UsageError(f"{baseline.profile} cannot be both the speculative one and the baseline")
    return Chosen(speculative, baseline, tuple(filter(None, (note, other))))


FAULTS = 10
"""Most faults of one file that are told."""
_WITHOUT = re.compile(
    r"(?i)base|plain|vanilla|(^|[^a-z])(no|non|without|off)([^a-z]?(spec|draft|mtp|eagle)|$|[^a-z])"
)
_DRAFTS = re.compile(r"(?i)spec|eagle|mtp|nextn|draft|ngram|medusa|lookahead|dflash")


def _one(
    surfaces: Sequence[Surface], name: str | None, fitting: Sequence[Surface], role: str
) -> tuple[Surface, str]:
    have = ", ".join(surface.profile for surface in surfaces)
    if name is not None:
        found = [surface for surface in surfaces if surface.profile == name]
        if found:
            return found[0], ""
        raise UsageError(f"--{role} {name}: no such surface", hint=f"there are {have}")
    if not fitting:
        hint = f"there are {have}; name it with --{role}"
        raise UsageError(f"no surface of a {role} profile", hint=hint)
    ranked = sorted(fitting, key=lambda surface: -len(surface.points))
    if len(ranked) == 1:
        return ranked[0], ""
    names = ", ".join(surface.profile for surface in fitting)
    if len(ranked[0].points) == len(ranked[1].points):
        raise UsageError(f"several {role} surfaces: {names}", hint=f"choose one with --{role}")
    first = ranked[0].profile
    return ranked[0], f"of {names}, {first} was measured most; --{role} takes another"


def _plain(case: Case) -> dict[str, Any]:
    content: dict[str, Any] = case.model_dump(mode="json", by_alias=True)
    return content


def _fault(where: str, detail: Any) -> str:
    place = ".".join(str(part) for part in detail["loc"])
    return f"{where}: {place}: {detail['msg']}" if place else f"{where}: {detail['msg']}"
