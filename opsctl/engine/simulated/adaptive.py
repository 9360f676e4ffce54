"""`--speculative-adaptive`: which draft steps a batch gets, by SGLang's own rules.

As read in 0.5.23 `srt/speculative/adaptive_spec_params.py`: the batch is padded to the next
captured graph, the greatest batch size of the file up to that holds its candidates, and among those
a moving average of accepted drafts decides.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SHIPPED: Mapping[str, Any] = {
    "1": {"candidate_steps": [1, 3, 5, 7]},
    "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0.0},
    "32": {"candidate_steps": [0, 1], "down_hysteresis": 0.0},
    "64": {"candidate_steps": [0]},
}
"""What 0.5.23 uses without a file."""
_NOT_LISTS = "BS {key}: candidate_steps must be a list of non-negative ints, got {found!r}"


def read(text: str | None) -> dict[int, Mapping[str, Any]]:
    """Return the settings of each batch size; raises ValueError as SGLang does."""
    content = SHIPPED if text is None else json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("the adaptive configuration is not a JSON object")
    found: dict[int, Mapping[str, Any]] = {}
    for key, entry in content.items():
        if not key.isdigit():
            continue
        steps = entry.get("candidate_steps")
        if not _is_list(steps):
            raise ValueError(_NOT_LISTS.format(key=key, found=steps))
        found[int(key)] = {**content, **entry}
    if not found:
        raise ValueError(
            "speculative_adaptive_config must contain at least one integer-string BS key"
        )
    return found


def candidates(settings: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return every step that any batch size may use, rising."""
    return sorted({step for entry in settings.values() for step in entry["candidate_steps"]})


def captured(listed: Sequence[int] | None, most: int) -> list[int]:
    """Return the batch sizes with a graph: those listed, or SGLang's own for speculation."""
    own = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
    return sorted(listed if listed else {*(size for size in own if size <= most), most})


@dataclass
class _Slot:
    """One batch size of the file, and what it has seen."""

    settings: Mapping[str, Any]
    steps: int
    mean: float
    batches: int = field(default=0)

    @classmethod
    def starting_at(cls, settings: Mapping[str, Any], initial: int) -> _Slot:
        own = sorted(set(settings["candidate_steps"]))
        steps = initial if initial in own else own[len(own) // 2]
        return cls({**settings, "candidate_steps": own}, steps, float(steps - 1))

    def verified(self, accepted: float) -> None:
        """Take in the mean number of accepted drafts of one batch."""
        get = self.settings.get
        if self.steps > 0:
            alpha = get("ema_alpha", 0.2)
            self.mean = (1 - alpha) * self.mean + alpha * accepted
        self.batches += 1
        since = self.batches - get("warmup_batches", 10)
        if since > 0 and since % get("update_interval", 5) == 0:
            self.steps = self._wanted()

    def _wanted(self) -> int:
        own, get = self.settings["candidate_steps"], self.settings.get
        at = own.index(self.steps)
        if self.steps == 0:  # try the next one
            target: int = own[min(at + 1, len(own) - 1)]
            self.mean = float(target - 1) if target > 0 and self.mean < 0 else self.mean
            return target
        down, up = get("down_hysteresis", -0.25), get("up_hysteresis", 0.0)
        while at > 0 and self.mean <= (0.5 if own[at - 1] == 0 else own[at - 1] - 0.5) + down:
            at -= 1
        if own[at] == self.steps:
            while at < len(own) - 1 and self.mean > own[at] - 0.5 + up:
                at += 1
        return int(own[at])


class Adaptive:
    """Chooses the steps of each batch."""

    def __init__(
        self, settings: Mapping[int, Mapping[str, Any]], initial: int, graphs: Sequence[int]
    ) -> None:
        self._sizes = sorted(settings)
        self._slots = {size: _Slot.starting_at(settings[size], initial) for size in settings}
        self._graphs = graphs

    def steps(self, batch: int) -> int:
        """Return the draft steps for a batch of this size."""
        return self._slot(batch).steps

    def verified(self, accepted: Sequence[int], batch: int) -> None:
        """Take in how many drafts of each request were accepted."""
        if accepted:
            self._slot(batch).verified(sum(accepted) / len(accepted))

    def _slot(self, batch: int) -> _Slot:
        at = bisect_left(self._graphs, batch)
        padded = self._graphs[at] if at < len(self._graphs) else batch
        return self._slots[self._sizes[max(0, bisect_right(self._sizes, padded) - 1)]]


def _is_list(steps: object) -> bool:
    if not isinstance(steps, list) or not steps:
        return False
    return all(isinstance(step, int) and step >= 0 for step in steps)
