"""What came of a reap: observed, not assumed, and one exit code for it; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opsctl.gpu.jit_locks import JitLock
from opsctl.gpu.model import DriverState, Holder
from opsctl.gpu.reaper_plan import Target

End = Literal["exited", "killed", "gone", "replaced", "denied", "survived"]
"""`gone`: it had ended before the first signal. `replaced`: its number had another owner by then;
nothing was signalled. `denied`: another user's. `survived`: not even SIGKILL ended it in time."""

ENDED: frozenset[End] = frozenset({"exited", "killed", "gone", "replaced"})


@dataclass(frozen=True)
class Result:
    """How one target ended, with the signals that were delivered to it, in order."""

    target: Target
    signals: tuple[str, ...]
    outcome: End
    detail: str | None = None


@dataclass(frozen=True)
class GpuRelease:
    """Memory of one GPU in bytes before and after; `released` None when it cannot be told."""

    gpu: int
    before: int | None
    after: int | None
    released: bool | None
    why: str


@dataclass(frozen=True)
class Outcome:
    """Everything that was done, and what still stands in the way."""

    results: tuple[Result, ...]
    memory: tuple[GpuRelease, ...] = ()
    ports_freed: tuple[int, ...] = ()
    ports_busy: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    """Files of the ended processes that were removed."""
    kept: tuple[str, ...] = ()
    """Files of theirs that were not, because somebody else uses them."""
    jit_locks: tuple[JitLock, ...] = ()
    blocked_by: tuple[Holder, ...] = ()
    """Who still holds memory and was not to be touched."""
    driver: DriverState = "ok"
    """State of the driver when it was looked at last."""

    @property
    def exit_code(self) -> int:
        """0 clean; 4 what may not be touched holds memory, or nobody can tell; 5 partly done."""
        ended = [result for result in self.results if result.outcome in ENDED]
        incomplete = (
            len(ended) < len(self.results)
            or any(gpu.released is False for gpu in self.memory)
            or bool(self.ports_busy)
        )
        if any(result.outcome == "survived" for result in self.results):
            return 4
        if incomplete:
            return 5 if ended else 4
        return 4 if self.blocked_by or self.driver in {"fault", "unresponsive"} else 0
