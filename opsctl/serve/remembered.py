"""What a later opsctl must know: written at every change, read at the next start.

Times in the state file are monotonic seconds, which all processes of one boot share; a file from
another boot keeps only what does not depend on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from opsctl.autospec.cost import Costs, Mechanism
from opsctl.autospec.plan import PlannedCosts
from opsctl.serve.failures import Failures
from opsctl.serve.state import State
from opsctl.system.files import write_atomic

SCHEMA = "opsctl/state/v1"


class EngineRecord(BaseModel):
    """The engine that was up: enough to find, adopt or end it."""

    model_config = ConfigDict(extra="ignore")

    identity: str
    profile: str
    fingerprint: str
    port: int
    ready: bool
    log: str | None = None
    """Its output; None stands for the first of the state directory's two."""
    extra_flags: dict[str, str | int | bool] = {}
    """What opsctl added to its profile's flags."""


class Remembered(BaseModel):
    """The contents of the state file."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    boot_id: str
    pid: int
    paused: bool = False
    drained: bool = False
    """Whether an operator had drained it, and nobody had ended the drain or asked it to stop."""
    engine: EngineRecord | None = None
    exit_code: int | None = None
    """How serving ended; None while it goes on, and after a death."""
    reason: str = ""
    last_good: str | None = None
    switches: int = 0
    switch_times: list[float] = []
    failure_times: list[float] = []
    streaks: dict[str, int] = {}
    quarantine: dict[str, float] = {}
    costs: dict[Mechanism, PlannedCosts] = {}

    def switch_costs(self) -> dict[Mechanism, Costs]:
        """What switches have cost on this host, by mechanism; a reboot does not change that."""
        return {mechanism: costs.costs() for mechanism, costs in self.costs.items()}

    def restore(self, boot_id: str) -> State:
        """A fresh state with the counters that must survive opsctl's own restart."""
        kept = State(last_good=self.last_good, switches=self.switches, drain_asked=self.drained)
        if self.boot_id != boot_id:
            return kept
        return replace(
            kept,
            switch_times=tuple(self.switch_times),
            failures=Failures(tuple(self.failure_times), self.streaks, self.quarantine),
        )


@dataclass(frozen=True)
class Snapshot:
    """What is written: the state, and the facts around it."""

    state: State
    boot_id: str
    pid: int
    paused: bool
    engine: Mapping[str, object] | None = field(default=None)
    costs: Mapping[Mechanism, Costs] = field(default_factory=dict)


def save(path: Path, snapshot: Snapshot) -> None:
    """Replace the state file; raises OSError.

    Not flushed to disk: what it is needed for ends with the boot, and streams must not wait.
    """
    state = snapshot.state
    document = {
        "schema": SCHEMA,
        "boot_id": snapshot.boot_id,
        "pid": snapshot.pid,
        "paused": snapshot.paused,
        "drained": state.drain_asked and not state.stopping_for_good,
        "engine": snapshot.engine,
        "exit_code": state.exit_code,
        "reason": state.reason,
        "last_good": state.last_good,
        "switches": state.switches,
        "switch_times": state.switch_times,
        "failure_times": state.failures.times,
        "streaks": dict(state.failures.streaks),
        "quarantine": dict(state.failures.quarantine),
        "costs": {
            mechanism: PlannedCosts.of(costs).model_dump(mode="json")
            for mechanism, costs in snapshot.costs.items()
        },
    }
    write_atomic(path, json.dumps(document, indent=1), durable=False)


def read(path: Path) -> Remembered | None:
    """The remembered state; None when there is none or it is not readable as such."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Remembered.model_validate(document)
    except (OSError, ValueError, ValidationError):
        return None
