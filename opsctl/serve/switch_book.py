"""What this host's switches have cost: learnt from the events of switches, kept by mechanism."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opsctl.autospec.cost import Costs, Mechanism
from opsctl.autospec.history import Stage, Switched
from opsctl.serve.load_journal import LoadJournal, NoJournal

_ENDED = frozenset({"switch_cancelled", "switch_called_off", "fell_back"})
"""Events after which a switch that has begun will not be done."""
_PARTS = ("prepare_s", "drain_s", "stop_s", "start_s")
"""Facts of the event `switched`; others have none of them, which is 0 s."""


class SwitchBook:
    """Takes the events of switches; `learnt` is told a mechanism's costs when they are news."""

    def __init__(
        self,
        journal: LoadJournal | NoJournal,
        times: Callable[[], tuple[float, float]],
        learnt: Callable[[Costs], None],
    ) -> None:
        self.costs: dict[Mechanism, Costs] = {}
        """Costs of switches on this host, as far as they are known."""
        self.mechanism: Mechanism = "restart"
        """By which the watchdog switches now."""
        self._journal = journal
        self._times = times
        self._learnt = learnt
        self._begun: Switched | None = None

    def of(self, mechanism: Mechanism) -> Costs:
        """Return what a switch by this mechanism costs, measured or assumed."""
        return self.costs.get(mechanism, Costs(mechanism))

    def note(self, event: str, facts: Mapping[str, object]) -> None:
        """Take an event of the journal; most are no switches."""
        begun = self._begun
        if event == "switch_begun":
            self._begun = self._switch("begun", facts)
            self._journal.note(self._begun)
        elif event == "switched":
            self._begun = None
            self._done(self._switch("done", facts))
        elif event in _ENDED and begun is not None:
            self._begun = None
            names = {"source": begun.source, "target": begun.target, "by": begun.by}
            self._journal.note(self._switch("ended", names))

    def _done(self, switched: Switched) -> None:
        self._journal.note(switched)
        mechanism = self.mechanism
        if mechanism == "in_engine":  # a switch of profiles is still one by a restart
            mechanism = "gated_restart" if switched.prepare_s else "restart"
        costs = self.of(mechanism).with_switch(
            switched.target, prepare=switched.prepare_s, closed=switched.closed_s
        )
        self.costs[mechanism] = costs
        self._learnt(costs)

    def _switch(self, stage: Stage, facts: Mapping[str, object]) -> Switched:
        time, wall = self._times()
        source, target, by = (str(facts.get(name, "")) for name in ("source", "target", "by"))
        parts = {part: _seconds(facts.get(part)) for part in _PARTS}
        return Switched(time, wall, stage, source, target, by, **parts)


def _seconds(value: object) -> float:
    return max(float(value), 0.0) if isinstance(value, int | float) else 0.0
