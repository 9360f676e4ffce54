"""The gate decides in the order of arrival, within bounds, and forgets nobody."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from opsctl.serve.gate import Engine, Gate, Limits, Refusal, Ticket

LIMITS = Limits(requests=3, size=100, time=60.0)


def closed(limits: Limits = LIMITS, *, admit: bool = True) -> Gate:
    gate = Gate(limits)
    gate.close("switch", admit=admit, retry_after=9.0)
    return gate


def refused(answer: object) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


def test_a_new_gate_holds_because_the_engine_is_starting() -> None:
    gate = Gate(LIMITS)
    assert gate.ask(gate.ticket(), 0.0) is None
    assert gate.reason == "starting"


def test_an_open_gate_names_the_engine_and_its_epoch() -> None:
    gate = closed()
    gate.open("http://a")
    assert gate.ask(gate.ticket(), 0.0) == Engine("http://a", 1)
    gate.open("http://b")
    assert gate.ask(gate.ticket(), 0.0) == Engine("http://b", 2)


def test_opening_wakes_in_the_order_of_arrival_even_those_that_were_at_an_engine() -> None:
    gate = closed()
    gate.open("http://a")
    early = gate.ticket()
    engine = gate.ask(early, 0.0)
    assert isinstance(engine, Engine)
    gate.close("crash", admit=True, retry_after=1.0)
    late = gate.ticket()
    assert gate.ask(late, 1.0) is None
    gate.fail(early, engine)
    assert gate.ask(early, 2.0) is None
    assert gate.open("http://b") == (early, late)


def test_a_failed_request_waits_for_another_opening_not_for_the_same_engine() -> None:
    gate = closed()
    gate.open("http://a")
    ticket = gate.ticket()
    engine = gate.ask(ticket, 0.0)
    assert isinstance(engine, Engine)
    gate.fail(ticket, engine)
    assert gate.ask(ticket, 1.0) is None
    assert gate.ask(gate.ticket(), 1.0) == engine
    assert gate.open("http://a") == (ticket,)
    assert gate.ask(ticket, 2.0) == Engine("http://a", 2)


@pytest.mark.parametrize("size", [0, 101])
def test_too_many_or_too_large_is_429_with_the_time_to_come_back(size: int) -> None:
    gate = closed()
    if not size:
        for _ in range(3):
            gate.ask(gate.ticket(), 0.0)
    answer = refused(gate.ask(gate.ticket(size=size), 0.0))
    assert (answer.status, answer.code, answer.retry_after) == (429, "too_many_held", 9.0)


def test_a_request_admitted_before_is_held_again_whatever_the_bounds() -> None:
    gate = closed()
    gate.open("http://a")
    ticket = gate.ticket(size=1000)
    engine = gate.ask(ticket, 0.0)
    assert isinstance(engine, Engine)
    gate.close("crash", admit=True, retry_after=1.0)
    for _ in range(3):
        gate.ask(gate.ticket(), 0.0)
    gate.fail(ticket, engine)
    assert gate.ask(ticket, 0.0) is None


def test_holding_ends_after_its_time_counted_over_all_holds() -> None:
    gate = closed()
    ticket = gate.ticket()
    assert gate.ask(ticket, 0.0) is None
    gate.open("http://a")
    engine = gate.ask(ticket, 40.0)
    assert isinstance(engine, Engine)
    gate.fail(ticket, engine)
    assert gate.ask(ticket, 100.0) is None
    assert gate.remaining(ticket, 100.0) == 20.0
    assert gate.ask(ticket, 119.9) is None
    answer = refused(gate.ask(ticket, 120.0))
    assert (answer.status, answer.code) == (503, "hold_timeout")
    assert gate.held == 0


def test_closing_for_good_turns_everybody_away() -> None:
    gate = closed()
    waiting = gate.ticket()
    gate.ask(waiting, 0.0)
    assert gate.close("failed", admit=False, retry_after=5.0) == (waiting,)
    for ticket in (waiting, gate.ticket()):
        answer = refused(gate.ask(ticket, 0.0))
        assert (answer.status, answer.code) == (503, "engine_unavailable")
    assert gate.held == 0


def test_a_request_without_patience_is_never_held() -> None:
    gate = closed()
    assert refused(gate.ask(gate.ticket(patient=False), 0.0)).status == 503
    gate.open("http://a")
    assert isinstance(gate.ask(gate.ticket(patient=False), 0.0), Engine)


def test_holding_can_be_switched_off() -> None:
    gate = closed(Limits(requests=0, size=0, time=0.0))
    assert refused(gate.ask(gate.ticket(), 0.0)).status == 503


def test_a_body_that_grows_too_large_while_held_is_refused() -> None:
    gate = closed()
    ticket = gate.ticket()
    gate.ask(ticket, 0.0)
    assert gate.resize(ticket, 100) is None
    assert refused(gate.resize(ticket, 101)).status == 429
    gate.leave(ticket, 1.0)
    assert gate.held_bytes == 0


class GateMachine(RuleBasedStateMachine):
    """Clients come, leave and fail while the owner opens and closes at random."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate(LIMITS)
        self.now = 0.0
        self.waiting: dict[int, Ticket] = {}
        self.at_engine: dict[int, tuple[Ticket, Engine]] = {}
        self.admitted: set[int] = set()
        self.refused_for_time: set[int] = set()
        self.admit = True

    def ask(self, ticket: Ticket) -> None:
        first = ticket.number not in self.admitted
        answer = self.gate.ask(ticket, self.now)
        self.waiting.pop(ticket.number, None)
        if isinstance(answer, Engine):
            assert answer == self.gate.engine
            assert answer.epoch > ticket.failed_epoch
            self.at_engine[ticket.number] = (ticket, answer)
            self.admitted.add(ticket.number)
        elif answer is None:
            self.waiting[ticket.number] = ticket
            self.admitted.add(ticket.number)
        elif answer.status == 429:
            assert first, "an admitted request was turned away by a bound"
        else:
            out_of_time = self.gate.remaining(ticket, self.now) <= 0
            for_good = self.gate.engine is None and not self.admit
            assert out_of_time or for_good

    @rule(size=st.integers(0, 60))
    def arrive(self, size: int) -> None:
        self.ask(self.gate.ticket(size=size))

    @rule(admit=st.booleans())
    def close(self, admit: bool) -> None:
        self.admit = admit
        for ticket in self.gate.close("closed", admit=admit, retry_after=1.0):
            self.ask(ticket)

    @rule()
    def open(self) -> None:
        woken = self.gate.open("http://engine")
        assert [t.number for t in woken] == sorted(self.waiting)
        for ticket in woken:
            self.ask(ticket)
        assert not self.waiting, "an opening left somebody behind"

    @precondition(lambda self: self.at_engine)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.at_engine)))
        ticket, engine = self.at_engine.pop(number)
        self.gate.fail(ticket, engine)
        self.ask(ticket)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = self.waiting.pop(data.draw(st.sampled_from(sorted(self.waiting))))
        self.gate.leave(ticket, self.now)
        self.gate.leave(ticket, self.now)

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for ticket in list(self.waiting.values()):
            if self.gate.remaining(ticket, self.now) <= 0:
                self.ask(ticket)
                assert ticket.number not in self.waiting

    @invariant()
    def counts_match(self) -> None:
        assert self.gate.admitted == len(self.admitted)
        assert self.gate.held == len(self.waiting)
        assert self.gate.held_bytes == sum(t.size for t in self.waiting.values())

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        for ticket in self.waiting.values():
            if self.gate.engine:
                assert ticket.failed_epoch == self.gate.engine.epoch
            else:
                assert self.admit


GateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_random_lives_of_a_gate = GateMachine.TestCase
