"""Results sorted into series that may be compared. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opsctl.bench.compare_model import LeftOut, Place, Series, Source
from opsctl.bench.results import Cell, Profile, Result

UNCHECKED_PROMPTS = ("random", "synthetic", "generated-shared-prefix")
"""Workloads of text that nobody would write: how much of a draft is accepted means nothing on it
(ai-dynamo/dynamo#12918, vllm#52536)."""


@dataclass
class _Building:
    profile: Profile
    result: Result
    sources: list[str] = field(default_factory=list)
    cells: dict[Place, list[Cell]] = field(default_factory=lambda: defaultdict(list))

    @property
    def name(self) -> str:
        return self.profile.name

    def take(self, source: str, cell: Cell) -> None:
        if source not in self.sources:
            self.sources.append(source)
        self.cells[cell.concurrency, cell.context].append(cell)


@dataclass(frozen=True)
class Gathered:
    """Series in the order in which they were met, and what does not count."""

    series: tuple[Series, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]


def gather(sources: Sequence[Source]) -> Gathered:
    """Sort cells into series: one for each profile, environment and workload.

    Repeats of several results of the same thing are put together; a measurement that is given
    twice counts once. Invalid ones, and those in latency mode, are named and left out.
    """
    building: dict[str, _Building] = {}
    seen: set[str] = set()
    left_out: list[LeftOut] = []
    notes: list[str] = []
    for source in sources:
        twice = 0
        profiles = {profile.name: profile for profile in source.result.profiles}
        for cell in source.result.cells:
            profile = profiles.get(cell.profile) or _unknown_profile(cell.profile)
            identity = _identity(source.result, profile)
            mark = f"{source.result.started} {identity} {cell.model_dump_json()}"
            if mark in seen:
                twice += 1
                continue
            seen.add(mark)
            reason = _refused(cell)
            if reason:
                left_out.append(_named(source, cell, reason))
                continue
            made = building.setdefault(identity, _Building(profile, source.result))
            made.take(source.name, cell)
        notes += _notes(source, twice)
    found = tuple(building.values())
    names = _names(found)
    series = tuple(_finished(item, name) for item, name in zip(found, names, strict=True))
    return Gathered(series, tuple(left_out), (*notes, *_across(series)))


def _refused(cell: Cell) -> str:
    if not cell.valid:
        return cell.reason or "not valid, without a reason"
    if cell.mode != "throughput":
        return "measured for latency, with natural ends: its throughput says little"
    if cell.throughput_tok_s <= 0:
        return "no throughput, though it calls itself valid"
    return ""


def _named(source: Source, cell: Cell, reason: str) -> LeftOut:
    return LeftOut(source.name, cell.profile, cell.concurrency, cell.context, cell.repeat, reason)


def _unknown_profile(name: str) -> Profile:
    return Profile(name=name, fingerprint="", speculative=False)


def _identity(result: Result, profile: Profile) -> str:
    facts = [profile.model_dump(), dict(result.environment), result.workload, result.salted]
    return json.dumps(facts, sort_keys=True, default=str)


def _names(found: Sequence[_Building]) -> list[str]:
    """Names that tell series of one workload apart: a profile measured before and after."""
    taken: dict[tuple[str, str], list[_Building]] = defaultdict(list)
    for item in found:
        taken[item.result.workload, item.name].append(item)
    names = []
    for item in found:
        same = taken[item.result.workload, item.name]
        names.append(item.name if len(same) == 1 else f"{item.name} ({', '.join(item.sources)})")
    return names


def _finished(item: _Building, name: str) -> Series:
    cells = {place: tuple(item.cells[place]) for place in sorted(item.cells)}
    return Series(
        name=name,
        profile=item.profile,
        workload=item.result.workload,
        environment=item.result.environment,
        sources=tuple(item.sources),
        cells=cells,
    )


def _notes(source: Source, twice: int) -> Iterator[str]:
    result = source.result
    if twice:
        yield f"{source.name}: {twice} measurements were given twice and count once"
    if not result.complete:
        yield f"{source.name}: the run was not finished; what it measured counts"
    if not result.salted:
        yield f"{source.name}: prompts were not salted: the prefix cache may have answered"
    if unchecked(result.workload):
        yield (
            f"{source.name}: workload {result.workload!r} is not natural text: how much of a draft "
            "is accepted means nothing on it"
        )


def unchecked(workload: str) -> bool:
    """Whether the workload is text that says nothing about speculation."""
    return workload.removeprefix("sglang:").removeprefix("aiperf:").startswith(UNCHECKED_PROMPTS)


def _across(series: Iterable[Series]) -> Iterator[str]:
    """Say what differs between series besides the profile."""
    listed = list(series)
    workloads = sorted({item.workload for item in listed})
    if len(workloads) > 1:
        yield f"several workloads, never compared with each other: {', '.join(workloads)}"
    for key in sorted({key for item in listed for key in item.environment}):
        values = {_shown(item.environment, key) for item in listed}
        if len(values) > 1:
            yield f"environments differ in `{key}`: {', '.join(sorted(values))}"


def _shown(environment: Mapping[str, object], key: str) -> str:
    text = json.dumps(environment.get(key), sort_keys=True, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
