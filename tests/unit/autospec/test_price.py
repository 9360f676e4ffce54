"""The price of a switch and of the way back, for open loops and for clients that wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.autospec.belief import Belief
from opsctl.autospec.cost import Costs, SwitchCost
from opsctl.autospec.fluid import loop_price, switch_price
from opsctl.autospec.load import LoadSample
from opsctl.autospec.pair import Pair
from opsctl.autospec.price import Price, price
from opsctl.autospec.suite import surface

PAIR = Pair(
    surface("draft", {0: {1: 75.0, 8: 350.0, 64: 600.0}}, speculative=True),
    surface("plain", {0: {1: 50.0, 8: 350.0, 64: 1200.0}}, speculative=False),
)
COST = SwitchCost(closed=60.0)


class Server:
    """Tells a belief of one second after the other."""

    def __init__(self, tempo: float = 1.0) -> None:
        self.belief = Belief(PAIR, tempo)
        self.now, self._done = 0.0, 0

    def wait(self, clients: int, *, seconds: int = 300, rate: int = 1) -> None:
        """So many clients, of which `rate` a second are answered and ask again."""
        for _ in range(seconds):
            self._second(clients, rate)

    def come(self, rate: int, *, seconds: int = 300) -> None:
        """Arrivals at random: how many there are at once has nothing to do with them."""
        for second in range(seconds):
            self._second(7 * second % 30, rate)

    def _second(self, count: int, rate: int) -> None:
        self.now += 1.0
        self._done += rate
        done = self._done
        here = LoadSample(self.now, count, 0, in_flight=count, arrived=done, completed=done)
        self.belief.see(here, "draft")

    def price(self) -> Price:
        """Of going from drafts to plain."""
        return price(self.belief, Costs(assumed=COST), "draft", high=0.98, now=self.now)


@pytest.fixture
def server() -> Server:
    return Server()


def test_clients_save_their_share_each(server: Server) -> None:
    """Twice as fast with 64 of them: each has half of its time back."""
    server.wait(64)
    found = server.price()
    assert found.clients == 64
    assert found.saves == pytest.approx(64 * 0.5)
    assert found.saves_now == found.saves


def test_going_costs_clients_what_they_wait(server: Server) -> None:
    server.wait(64)
    draft, plain = (server.belief.service(name) for name in ("draft", "plain"))
    assert server.price().go == pytest.approx(loop_price(draft, plain, COST, 64.0))
    assert server.price().go > 64 * 60


def test_the_way_back_is_priced_at_the_clients_of_the_busy_times(server: Server) -> None:
    server.come(1)
    server.belief.rates.past_clients.append(200.0)
    draft, plain = (server.belief.service(name) for name in ("draft", "plain"))
    assert server.belief.clients is None
    assert server.price().back == pytest.approx(loop_price(plain, draft, COST, 200.0))


def test_the_way_back_is_priced_at_the_arrivals_of_the_busy_times(server: Server) -> None:
    """Though clients wait now: they are few."""
    server.wait(2)
    server.belief.rates.past.append(2.5)
    draft, plain = (server.belief.service(name) for name in ("draft", "plain"))
    count = min(plain.settled(2.5), 100.0)
    assert server.belief.clients == 2
    assert server.price().back == pytest.approx(switch_price(plain, draft, COST, count, 2.5))
    assert server.price().back > 2 * loop_price(plain, draft, COST, 2.0)


def test_a_price_holds_for_twenty_seconds(server: Server) -> None:
    server.come(1)
    found = server.price()
    assert not found.stale(server.now + 19.0, server.belief)
    assert found.stale(server.now + 20.0, server.belief)


def test_a_price_holds_for_a_quarter_of_that_on_a_clock_four_times_as_fast() -> None:
    server = Server(tempo=0.25)
    server.come(1)
    found = server.price()
    assert not found.stale(server.now + 4.5, server.belief)
    assert found.stale(server.now + 5.0, server.belief)


def test_a_price_is_stale_at_once_when_the_arrival_rate_has_moved(server: Server) -> None:
    server.come(1)
    found = server.price()
    server.come(3, seconds=10)
    assert found.stale(found.at + 1.0, server.belief)


def test_a_price_for_clients_is_stale_at_once_when_none_waits_any_more(server: Server) -> None:
    """At the same rate: nothing else has changed."""
    server.come(1)
    found = server.price()
    assert server.belief.clients is None
    assert replace(found, clients=20.0).stale(found.at + 1.0, server.belief)


def test_a_price_for_arrivals_is_stale_at_once_when_clients_are_found(server: Server) -> None:
    server.wait(20)
    found = server.price()
    assert replace(found, clients=None).stale(found.at + 1.0, server.belief)


def test_a_price_is_stale_at_once_when_there_are_twice_the_clients(server: Server) -> None:
    """They are answered no faster than before."""
    server.wait(20, rate=10)
    found = server.price()
    server.wait(40, rate=10, seconds=10)
    assert server.belief.clients == 40
    assert found.stale(found.at + 1.0, server.belief)


def test_a_price_holds_when_the_same_clients_are_answered_faster(server: Server) -> None:
    server.wait(20)
    found = server.price()
    server.wait(20, rate=3, seconds=15)
    assert server.belief.rates.fast > 1.5
    assert not found.stale(found.at + 15.0, server.belief)
