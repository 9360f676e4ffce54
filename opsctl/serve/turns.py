"""Instances on one host switch one after the other: two loads at once would share disk and memory.

A switch waits for its turn while the engine serves on, so waiting costs nobody an answer. Only a
switch waits. A first start, and the way back after a crash, never do: there an engine is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from opsctl.serve.inputs import DrainAsked, Event, StopAsked, SwitchAsked, Tick
from opsctl.serve.lifecycle import refusal
from opsctl.serve.state import Phase, State
from opsctl.system.host_lock import HostLock

VARIABLE = "OPSCTL_LOCK_DIR"
"""Folder of the lock. Without it this instance is alone and never waits."""
FILE = "switch.lock"
_SETTLED = frozenset({Phase.SERVING, Phase.DRAINED, Phase.BACKOFF, Phase.STOPPED, Phase.FAILED})


class Turns:
    """Lets one switch through at a time; what must wait is kept here, at most one."""

    def __init__(self, environment: Mapping[str, str], record: Callable[..., None]) -> None:
        folder = environment.get(VARIABLE)
        self._lock = HostLock(Path(folder) / FILE) if folder else None
        self._record = record
        self._told_missing = False
        self.waiting: SwitchAsked | None = None

    @property
    def reason(self) -> str:
        """What is waited for, in words; empty when nothing waits."""
        if self.waiting is None:
            return ""
        return f"the switch to {self.waiting.profile} waits for the switch of another instance"

    def admit(self, event: Event, state: State) -> Event | None:
        """The event to step with now; None for a switch that has to wait."""
        match event:
            case SwitchAsked():
                return self._asked(event, state)
            case Tick() if self.waiting is not None:
                return self._try_again(event, self.waiting, state)
            case StopAsked() | DrainAsked():
                self.withdraw(getattr(event, "by", "operator"))
        return event

    def withdraw(self, by: str) -> None:
        """Give up the switch that waits, if one does."""
        if self.waiting is not None:
            self._record("switch_called_off", target=self.waiting.profile, by=by)
            self.waiting = None

    def settle(self, state: State) -> None:
        """Let others switch as soon as this switch is over, whichever way."""
        over = state.switching is None and state.phase in _SETTLED
        if self._lock is not None and (over or state.exit_code is not None):
            self._lock.give_back()

    def _asked(self, event: SwitchAsked, state: State) -> Event | None:
        if refusal(state, event.profile) is not None:
            return event  # the state machine says why
        without_an_engine = state.phase is Phase.BACKOFF
        if without_an_engine or state.switching is not None or self._take():
            self.waiting = None
            return event
        if self.waiting is None or self.waiting.profile != event.profile:
            holder = self._lock.holder() if self._lock is not None else None
            self._record("switch_waits", profile=event.profile, by=event.by, holder=holder)
        self.waiting = event
        return None

    def _try_again(self, tick: Tick, waiting: SwitchAsked, state: State) -> Event:
        if state.profile == waiting.profile and state.phase is Phase.SERVING:
            self.withdraw("fallback")  # what was asked for has come about
            return tick
        if refusal(state, waiting.profile) is not None or not self._take():
            return tick
        self.waiting = None
        return waiting

    def _take(self) -> bool:
        if self._lock is None:
            return True
        try:
            return self._lock.take()
        except OSError as error:
            if not self._told_missing:
                self._told_missing = True
                path, why = str(self._lock.path), error.strerror
                self._record("host_lock_unavailable", path=path, why=why)
            return True  # a missing file must not keep anybody from switching
