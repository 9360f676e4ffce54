"""Random lives of lifecycle and gate together: what must hold, holds whatever happens.

The world here is a list of engines that hold memory from their start until their release is
observed, requests at the real gate, and a clock that jumps. The machine plays operator, policy,
clients and fate; the code under test decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from opsctl.autospec.guards import GuardRules, Situation, vetoes
from opsctl.serve import effects as do
from opsctl.serve import inputs
from opsctl.serve.failures import RestartRules
from opsctl.serve.gate import Engine, Gate, Limits, Refusal, Ticket
from opsctl.serve.lifecycle import step
from opsctl.serve.state import Phase, Rules, State

PROFILES = ("eagle3", "baseline")
DWELL = 30.0
BUDGET = 3
RULES = Rules(
    restart=RestartRules(budget=6, budget_window=900.0, quarantine_after=2, quarantine_for=600.0),
    drain=lambda name: 20.0,
    fallbacks=PROFILES,
    gated=lambda name: name == "baseline",
)
GUARDS = GuardRules(dwell=DWELL, switches_per_hour=BUDGET)


@dataclass
class World:
    """Engines that hold memory, and what has been asked of them."""

    holding: dict[int, str] = field(default_factory=dict)
    starting: int | None = None
    stopping: int | None = None
    idle_wanted: int | None = None
    standby: int | None = None
    standby_ready: bool = False
    open: bool = False
    exited: int | None = None


class Serving(RuleBasedStateMachine):
    """Everything that may happen to one serving instance."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.state = State()
        self.world = World()
        self.gate = Gate(Limits(10_000, 10**9, 10**9))
        self.waiting: list[Ticket] = []
        self.in_flight: list[Ticket] = []
        self.served = 0
        self.turned_away = 0
        self.admitted = 0
        self.stop_asked = False
        self.drain_asked = False
        self.auto_switches: list[float] = []
        self.ready_at: float | None = None

    @initialize(profile=st.sampled_from(PROFILES))
    def begin(self, profile: str) -> None:
        self.post(inputs.Begin(profile))

    def post(self, event: inputs.Event) -> None:
        self.state, wanted = step(self.state, event, self.now, RULES)
        for effect in wanted:
            self.perform(effect)

    def perform(self, effect: do.Effect) -> None:  # noqa: PLR0912 - one branch for each effect
        world = self.world
        match effect:
            case do.Start():
                assert not world.holding, "a start while an engine still holds memory"
                assert world.stopping is None
                world.holding[effect.generation] = effect.profile
                world.starting = effect.generation
            case do.StopEngine():
                world.stopping = effect.generation
                world.starting = None
                self.break_connections()
            case do.Prepare():
                assert world.standby is None, "two standbys"
                world.standby, world.standby_ready = effect.standby, False
            case do.DropStandby():
                assert world.standby in {effect.standby, None}
                world.standby = None
            case do.Activate():
                assert not world.holding, "a standby let through while an engine holds memory"
                assert world.stopping is None
                if world.standby == effect.standby:
                    assert world.standby_ready
                    world.standby = None
                world.holding[effect.generation] = effect.profile
                world.starting = effect.generation
            case do.OpenGate():
                assert effect.generation in world.holding, (
                    "the gate opened to an engine that is not"
                )
                assert world.starting is None
                assert world.stopping is None
                world.open = True
                self.wake(self.gate.open(f"engine-{effect.generation}"))
            case do.CloseGate():
                world.open = False
                self.wake(self.gate.close(effect.reason, admit=effect.admit, retry_after=1.0))
            case do.AwaitIdle():
                world.idle_wanted = effect.generation
            case do.Cut():
                assert self.may_turn_away()
                self.turned_away += len(self.in_flight)
                self.in_flight.clear()
            case do.Record(event="switched"):
                if effect.facts["by"] == "policy":
                    self.auto_switches.append(self.now)
            case do.Exit():
                world.exited = effect.code

    def wake(self, tickets: tuple[Ticket, ...]) -> None:
        for ticket in tickets:
            self.ask(ticket)

    def ask(self, ticket: Ticket) -> None:
        answer = self.gate.ask(ticket, self.now)
        if isinstance(answer, Engine):
            assert self.world.open
            self.in_flight.append(ticket)
            self.waiting = [other for other in self.waiting if other is not ticket]
        elif isinstance(answer, Refusal):
            self.waiting = [other for other in self.waiting if other is not ticket]
            assert self.may_turn_away(), f"an admitted request was turned away: {answer}"
            self.turned_away += 1
        elif ticket not in self.waiting:
            self.waiting.append(ticket)

    def break_connections(self) -> None:
        """The engine goes: requests without a byte go back to the gate to be tried again."""
        broken, self.in_flight = self.in_flight, []
        for ticket in broken:
            engine = self.gate.engine or Engine("gone", 10**6)
            if self.gate.engine is not None:
                self.gate.fail(ticket, engine)
            self.ask(ticket)

    def may_turn_away(self) -> bool:
        """Only the end of serving itself, or an operator's drain, may do that."""
        return self.stop_asked or self.drain_asked or self.state.exit_code is not None

    @rule()
    def request(self) -> None:
        ticket = self.gate.ticket(size=100)
        answer = self.gate.ask(ticket, self.now)
        if isinstance(answer, Refusal):
            assert self.may_turn_away()
            return
        self.admitted += 1
        if isinstance(answer, Engine):
            self.in_flight.append(ticket)
        else:
            self.waiting.append(ticket)

    @precondition(lambda self: self.in_flight)
    @rule()
    def request_ends(self) -> None:
        self.in_flight.pop(0)
        self.served += 1

    @rule(seconds=st.sampled_from([0.2, 1.0, 5.0, 25.0, 120.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.post(inputs.Tick())

    @precondition(lambda self: self.world.starting is not None)
    @rule()
    def start_succeeds(self) -> None:
        generation, self.world.starting = self.world.starting, None
        assert generation is not None
        self.ready_at = self.now
        self.post(inputs.Ready(generation))

    @precondition(lambda self: self.world.starting is not None)
    @rule(kind=st.sampled_from(["exited", "stage_timeout", "bad_flags", "precondition"]))
    def start_fails(self, kind: str) -> None:
        generation, self.world.starting = self.world.starting, None
        assert generation is not None
        self.post(inputs.StartFailed(generation, kind, "as it happens"))

    @precondition(lambda self: self.world.standby is not None and not self.world.standby_ready)
    @rule()
    def standby_gets_ready(self) -> None:
        assert self.world.standby is not None
        self.world.standby_ready = True
        self.post(inputs.StandbyReady(self.world.standby))

    @precondition(lambda self: self.world.standby is not None)
    @rule(kind=st.sampled_from(["exited", "unsupported", "bad_flags"]))
    def standby_fails(self, kind: str) -> None:
        number = self.world.standby
        assert number is not None
        self.post(inputs.StandbyFailed(number, kind, "as it happens"))
        assert self.world.standby is None, "a dead standby was not let go"

    @precondition(lambda self: self.world.stopping is not None)
    @rule()
    def release_is_observed(self) -> None:
        generation, self.world.stopping = self.world.stopping, None
        assert generation is not None
        self.world.holding.pop(generation, None)
        self.post(inputs.Released(generation))

    @precondition(lambda self: self.world.stopping is not None)
    @rule()
    def release_fails(self) -> None:
        generation, self.world.stopping = self.world.stopping, None
        assert generation is not None
        self.post(inputs.NotReleased(generation, "memory is held"))

    @precondition(lambda self: self.world.idle_wanted is not None and not self.in_flight)
    @rule()
    def becomes_idle(self) -> None:
        generation, self.world.idle_wanted = self.world.idle_wanted, None
        assert generation is not None
        self.post(inputs.Idle(generation))

    @rule(kind=st.sampled_from(["exited", "hang", "child_lost"]), stale=st.booleans())
    def engine_is_lost(self, kind: str, stale: bool) -> None:
        before = self.state
        self.post(inputs.EngineLost(before.generation - int(stale), kind, "as it happens"))
        if stale:
            assert self.state == before, "news of an engine long gone changed something"

    @rule(profile=st.sampled_from(PROFILES))
    def operator_switches(self, profile: str) -> None:
        self.post(inputs.SwitchAsked(profile, "operator"))

    @rule(profile=st.sampled_from(PROFILES), urgent=st.booleans())
    def policy_switches(self, profile: str, urgent: bool) -> None:
        situation = Situation(
            serving=self.state.phase is Phase.SERVING,
            ready_at=self.state.ready_at,
            switch_times=self.state.switch_times,
            quarantine=self.state.failures.quarantine,
            paused=False,
        )
        if profile == self.state.profile or vetoes(GUARDS, situation, profile, self.now):
            return
        assert self.ready_at is not None
        assert self.now >= self.ready_at + DWELL
        self.post(inputs.SwitchAsked(profile, "policy", urgent=urgent))

    @rule()
    def operator_drains(self) -> None:
        if self.state.phase in {Phase.SERVING, Phase.PREPARING}:
            self.drain_asked = True
        self.post(inputs.DrainAsked())

    @rule()
    def operator_ends_drain(self) -> None:
        self.post(inputs.UndrainAsked())
        if not self.stop_asked:
            self.drain_asked = False

    @precondition(lambda self: not self.stop_asked)
    @rule(sure=st.integers(0, 9))
    def operator_stops(self, sure: int) -> None:
        if sure:  # seldom, or every life is short
            return
        self.stop_asked = True
        self.post(inputs.StopAsked("operator"))

    @invariant()
    def never_two_engines_with_memory(self) -> None:
        assert len(self.world.holding) <= 1

    @invariant()
    def gate_is_open_only_while_serving(self) -> None:
        assert self.world.open == self.state.gate_open
        urgent = self.state.switching is not None and self.state.switching.urgent
        if self.world.open:
            assert self.state.phase is Phase.SERVING or not urgent

    @invariant()
    def a_standby_belongs_to_a_switch(self) -> None:
        switching = self.state.switching
        assert self.world.standby == (None if switching is None else switching.standby)

    @invariant()
    def a_drain_holds_until_it_is_ended(self) -> None:
        assert not (self.drain_asked and self.world.open)

    @invariant()
    def a_stop_is_never_taken_back(self) -> None:
        assert not (self.stop_asked and self.world.open)

    @invariant()
    def no_admitted_request_is_lost(self) -> None:
        accounted = self.served + len(self.in_flight) + len(self.waiting) + self.turned_away
        assert self.admitted == accounted

    @invariant()
    def nobody_waits_at_an_open_gate(self) -> None:
        if self.world.open:
            assert all(ticket.failed_epoch for ticket in self.waiting)

    @invariant()
    def switches_stay_within_dwell_and_budget(self) -> None:
        assert len([t for t in self.auto_switches if t > self.now - 3600.0]) <= BUDGET

    @invariant()
    def there_is_always_a_way_on(self) -> None:
        """In every phase something is under way whose end leads on, or serving has ended."""
        phase, world = self.state.phase, self.world
        if phase is Phase.STARTING:
            assert world.starting == self.state.generation
        elif phase is Phase.STOPPING:
            assert world.stopping == self.state.generation
        elif phase is Phase.PREPARING:
            assert world.standby is not None
        elif phase is Phase.BACKOFF:
            assert self.state.until is not None
        elif phase is Phase.DRAINING:
            assert world.idle_wanted == self.state.generation or self.state.until is not None
        elif phase in {Phase.STOPPED, Phase.FAILED}:
            assert world.exited is not None

    def teardown(self) -> None:
        """From anywhere, when the world behaves again, serving comes back (or has ended)."""
        if self.world.exited is not None or self.stop_asked:
            return
        self.operator_ends_drain()
        for _ in range(40):
            if self.world.stopping is not None:
                self.release_is_observed()
            elif self.world.starting is not None:
                self.start_succeeds()
            elif self.state.phase is Phase.PREPARING:
                self.standby_gets_ready()
            elif self.state.phase is Phase.DRAINING and self.world.idle_wanted is not None:
                self.served += len(self.in_flight)
                self.in_flight.clear()
                self.becomes_idle()
            elif self.state.phase is Phase.SERVING or self.world.exited is not None:
                break
            else:
                self.operator_ends_drain()
                self.time_passes(120.0)
        assert self.state.phase is Phase.SERVING or self.world.exited is not None


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
