"""SGLang's own adaptive speculation, set from what was measured. Pure.

SGLang (0.5.14 and later) takes a JSON file that says, from which batch size on, which numbers of
draft steps it may use; it chooses among them by how many drafts are accepted. It does not know
whether drafting pays at that batch size at all: that is what a surface knows. So where drafting
loses, `[0]` is the only candidate, which also spares the probes (at 0 steps with other candidates
SGLang tries the next one again every few batches). Its own table ([0] from 64 on) is of other
hardware. Read of SGLang 0.5.23, `srt/speculative/adaptive_spec_params.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from opsctl.autospec.surface import Surface
from opsctl.errors import OpsctlError


class AdaptiveError(OpsctlError):
    """An adaptive configuration of SGLang cannot be read."""


@dataclass(frozen=True)
class Slot:
    """From a batch size on: the draft steps that SGLang may use; 0 does not draft."""

    batch: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Adaptive:
    """The slots, or why there is nothing to adapt."""

    slots: tuple[Slot, ...]
    why_not: str = ""

    def text(self) -> str:
        """Return the file for `speculative-adaptive-config`."""
        content = {str(slot.batch): {"candidate_steps": list(slot.steps)} for slot in self.slots}
        return json.dumps(content, indent=1) + "\n"


def read_slots(text: str) -> tuple[Slot, ...]:
    """Read the slots of SGLang's file, by rising batch size; raises ValueError.

    What is no batch size (a setting for all of them) is passed over, as SGLang does.
    """
    content = json.loads(text)
    if not isinstance(content, Mapping):
        raise ValueError("it is no JSON object")
    found = []
    for key, entry in content.items():
        if not (key.isascii() and key.isdigit()):
            continue
        steps = entry.get("candidate_steps") if isinstance(entry, Mapping) else None
        if not isinstance(steps, list) or not steps or not all(_is_step(x) for x in steps):
            raise ValueError(f"batch size {key}: `candidate_steps` has to be a list of steps")
        found.append(Slot(int(key), tuple(sorted(set(steps)))))
    if not found:
        raise ValueError("it has no batch size as a key")
    return tuple(sorted(found, key=lambda slot: slot.batch))


def adaptive(
    baseline: Surface, drafts: Mapping[int, Surface], contexts: Sequence[int] | None = None
) -> Adaptive:
    """Return the slots for a baseline and the surface of each number of draft steps.

    Steps are candidates only where they were measured not to lose, at any of `contexts` (all that
    were measured, when None): SGLang's file knows no context, and harm is not to be done. Where
    intervals overlap, both 0 and the steps are left to SGLang.
    """
    surfaces = [baseline, *drafts.values()]
    places = sorted(set.intersection(*(set(surface.contexts) for surface in surfaces)))
    places = [x for x in places if contexts is None or x in contexts]
    if not places:
        return Adaptive((), "no context was measured of both")
    if any(s.bounds(1, places[0]) is None for s in surfaces):
        return Adaptive((), "some cells have one valid repeat: no interval to judge by")
    most = min(surface.most for surface in surfaces)
    slots = tuple(_slots(baseline, drafts, places, most))
    if len(slots) == 1:
        [only] = slots
        never = only.steps == (0,)
        what = "drafting never pays" if never else "drafting was not seen to lose anywhere"
        return Adaptive((), f"{what} up to concurrency {most}: one fixed setting serves better")
    return Adaptive(slots)


def _slots(
    baseline: Surface, drafts: Mapping[int, Surface], contexts: Sequence[int], most: int
) -> Iterator[Slot]:
    last: tuple[int, ...] | None = None
    for batch in range(1, most + 1):
        steps = _candidates(baseline, drafts, contexts, batch)
        if steps != last:
            yield Slot(batch, steps)
        last = steps


def _candidates(
    baseline: Surface, drafts: Mapping[int, Surface], contexts: Sequence[int], batch: int
) -> tuple[int, ...]:
    kept = {
        step: draft
        for step, draft in drafts.items()
        if not any(_beats(baseline, draft, batch, context) for context in contexts)
    }
    wins = {
        step: draft
        for step, draft in kept.items()
        if all(_beats(draft, baseline, batch, context) for context in contexts)
    }
    if not wins:
        return tuple(sorted({0, *kept}))
    return tuple(
        sorted(
            step
            for step, draft in wins.items()
            if not any(
                all(_beats(other, draft, batch, context) for context in contexts)
                for other in wins.values()
            )
        )
    )


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _beats(left: Surface, right: Surface, batch: int, context: int) -> bool:
    """Whether `left` is faster for certain: the intervals do not overlap."""
    ours, theirs = left.bounds(batch, context), right.bounds(batch, context)
    return ours is not None and theirs is not None and ours[0] > theirs[1]
