"""The load journal: what a policy was told, what it said, and what came of it. Pure.

`opsctl serve --auto-spec` writes it (`load.jsonl`, one JSON object a line) and two read it: the
next `opsctl serve`, so that a restart does not forget what was learnt, and `opsctl autospec
replay`, which builds the same policy from it and must come to the same decisions. Keys are short,
because there is a line every second. Times are monotonic seconds of one boot; `wall` is UNIX time,
by which the times of another boot are carried over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from opsctl.autospec.load import LoadSample
from opsctl.autospec.plan import Plan
from opsctl.autospec.policy import Decision

SCHEMA = "opsctl/load/v1"

Why = Literal["start", "changed", "again"]
Stage = Literal["begun", "done", "ended"]

_COUNTS = {
    "r": "running",
    "q": "queued",
    "h": "held",
    "f": "in_flight",
    "a": "arrived",
    "u": "used_tokens",
    "c": "completed",
    "g": "generated",
    "s": "stalled",
}
_ALWAYS_KNOWN = frozenset({"held", "in_flight", "arrived", "completed"})


@dataclass(frozen=True)
class SetUp:
    """A policy was built. `why`: opsctl `start`ed, its set-up `changed`, or a new file begins.

    In a file that begins `again` the policy goes on as it was. `restored`: so many of the samples
    before were told to the new policy first.
    """

    time: float
    wall: float
    boot: str
    why: Why
    plan: Plan
    restored: int = 0

    def told(self, samples: int) -> SetUp:
        """Return it with the number of samples that the policy was told first."""
        return replace(self, restored=samples)


@dataclass(frozen=True, slots=True)
class Seen:
    """The policy was told a sample; `asked`: and asked for a decision at the sample's time."""

    sample: LoadSample
    serving: str | None
    wall: float
    asked: bool = True


@dataclass(frozen=True)
class Switched:
    """A switch was `begun`, is `done` (with the seconds of its parts), or `ended` in vain."""

    time: float
    wall: float
    stage: Stage
    source: str
    target: str
    by: str = ""
    prepare_s: float = 0.0
    drain_s: float = 0.0
    stop_s: float = 0.0
    start_s: float = 0.0

    @property
    def closed_s(self) -> float:
        """Seconds in which nobody served, the drain left out."""
        return self.stop_s + self.start_s


@dataclass(frozen=True)
class Decided:
    """A decision that was news: another action or profile than before, or other vetoes."""

    time: float
    wall: float
    decision: Decision
    vetoes: tuple[str, ...] = ()


Record = SetUp | Seen | Switched | Decided


def header(version: str) -> str:
    """Return the first line of each file; `version` of opsctl."""
    return _line({"schema": SCHEMA, "opsctl": version})


def line(record: Record) -> str:
    """Return a record as the line that `parse` reads."""
    match record:
        case Seen():
            return _line(_seen_document(record))
        case SetUp():
            facts = {"why": record.why, "boot": record.boot, "restored": record.restored}
            body = {**facts, "plan": record.plan.document()}
            return _line({"t": record.time, "w": record.wall, "setup": body})
        case Switched():
            parts = ("prepare_s", "drain_s", "stop_s", "start_s")
            body = {"stage": record.stage, "source": record.source, "target": record.target}
            body |= {"by": record.by}
            body |= {part: getattr(record, part) for part in parts if record.stage == "done"}
            return _line({"t": record.time, "w": record.wall, "switch": body})
        case Decided():
            decision = finite(record.decision)
            body = {"action": decision.action, "profile": decision.profile}
            body |= {"reason": decision.reason, "numbers": dict(decision.numbers)}
            body |= {"change": decision.change, "urgent": decision.urgent}
            body |= {"vetoes": list(record.vetoes)}
            return _line({"t": record.time, "w": record.wall, "decision": body})


def parse(lines: Iterable[str]) -> Iterator[Record]:
    """Read the records of one or several files, in the order they are given.

    What is not a record is passed over: a line cut short by a crash, a header, junk, and records
    of kinds that only a newer opsctl writes.
    """
    for text in lines:
        record = _record(text)
        if record is not None:
            yield record


def carried_over(seen: Seen, setup: SetUp, boot: str) -> Seen:
    """Return a sample of boot `boot` with its time on the clock of `setup`'s boot."""
    if boot == setup.boot:
        return seen
    time = round(setup.time - (setup.wall - seen.wall), 3)
    sample = seen.sample
    moved = {key: getattr(sample, key) for key in LoadSample.__slots__} | {"time": time}
    return Seen(LoadSample(**moved), seen.serving, seen.wall, seen.asked)


def finite(decision: Decision) -> Decision:
    """Return a decision as JSON can hold it: what is not a finite number is unknown."""
    numbers = {
        key: None if value is not None and not math.isfinite(value) else value
        for key, value in decision.numbers.items()
    }
    return replace(decision, numbers=numbers)


def _line(document: Mapping[str, object]) -> str:
    return json.dumps(document, separators=(",", ":")) + "\n"


def _seen_document(record: Seen) -> dict[str, object]:
    sample = record.sample
    document: dict[str, object] = {"t": sample.time, "w": record.wall}
    if record.serving is not None:
        document["p"] = record.serving
        if not record.asked:
            document["n"] = 1
    for key, name in _COUNTS.items():
        value = getattr(sample, name)
        if value is not None and (value or name != "stalled"):
            document[key] = value
    if sample.accept_length is not None:
        document["l"] = sample.accept_length
    return document


class _NotARecordError(ValueError):
    """This line is something else."""


def _record(text: str) -> Record | None:
    try:
        document = json.loads(text, parse_constant=_refuse)
        return _read(document) if isinstance(document, dict) else None
    except (ValueError, RecursionError):
        return None


def _read(document: Mapping[str, Any]) -> Record:
    time, wall = _number(document, "t"), _number(document, "w")
    if "setup" in document:
        return _setup(time, wall, _mapping(document, "setup"))
    if "switch" in document:
        return _switched(time, wall, _mapping(document, "switch"))
    if "decision" in document:
        return _decided(time, wall, _mapping(document, "decision"))
    return _seen(time, wall, document)


def _seen(time: float, wall: float, document: Mapping[str, Any]) -> Seen:
    counts: dict[str, Any] = {}
    for key, name in _COUNTS.items():
        value = document.get(key)
        if value is None and name not in _ALWAYS_KNOWN:
            continue
        if type(value) is not int or value < 0:
            raise _NotARecordError
        counts[name] = value
    length = None if document.get("l") is None else _number(document, "l")
    serving = document.get("p")
    if serving is not None and not isinstance(serving, str):
        raise _NotARecordError
    asked = serving is not None and not document.get("n")
    return Seen(LoadSample(time=time, accept_length=length, **counts), serving, wall, asked)


def _setup(time: float, wall: float, body: Mapping[str, Any]) -> SetUp:
    why, restored = _word(body, "why", Why), body.get("restored", 0)
    if type(restored) is not int or restored < 0:
        raise _NotARecordError
    plan = Plan.from_document(_mapping(body, "plan"))
    return SetUp(time, wall, _text(body, "boot"), why, plan, restored)


def _switched(time: float, wall: float, body: Mapping[str, Any]) -> Switched:
    stage = _word(body, "stage", Stage)
    source, target = _text(body, "source"), _text(body, "target")
    if stage != "done":
        return Switched(time, wall, stage, source, target, _text(body, "by"))
    parts = [_number(body, part) for part in ("prepare_s", "drain_s", "stop_s", "start_s")]
    if min(parts) < 0:
        raise _NotARecordError
    return Switched(time, wall, stage, source, target, _text(body, "by"), *parts)


def _decided(time: float, wall: float, body: Mapping[str, Any]) -> Decided:
    action = _word(body, "action", Literal["stay", "switch"])
    numbers, vetoes = _mapping(body, "numbers"), body.get("vetoes")
    if not isinstance(vetoes, list) or not all(isinstance(veto, str) for veto in vetoes):
        raise _NotARecordError
    decision = Decision(
        action,
        _text(body, "profile"),
        _text(body, "reason"),
        numbers,
        _text(body, "change"),
        urgent=body.get("urgent") is True,
    )
    return Decided(time, wall, decision, tuple(vetoes))


def _refuse(name: str) -> float:
    raise ValueError(name)


def _number(document: Mapping[str, Any], key: str) -> float:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NotARecordError
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        raise _NotARecordError from None
    if not math.isfinite(number):
        raise _NotARecordError
    return number


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise _NotARecordError
    return value


def _word(document: Mapping[str, Any], key: str, words: Any) -> Any:
    value = document.get(key)
    if value not in get_args(words):
        raise _NotARecordError
    return value


def _mapping(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise _NotARecordError
    return value
