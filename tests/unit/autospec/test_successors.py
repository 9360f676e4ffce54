from __future__ import annotations

from opsctl.autospec.arrivals import Requests
from opsctl.autospec.successors import Successors

TREE = Requests(
    "tree", (7.0, 5.0, 2.0, 0.5, 1.0), (1,) * 5, (1,) * 5, 1.0, (-1, -1, 0, 0, 2)
)  # fmt: skip
"""Two come by themselves; two wait for the first one, and one for one of those."""


def test_at_the_begin_those_are_due_that_wait_for_none() -> None:
    assert sorted(Successors(TREE).due) == [(5.0, 1), (7.0, 0)]
    assert Successors(TREE).due[0] == (5.0, 1)


def test_an_answer_makes_those_due_that_waited_for_it_after_their_thought() -> None:
    found = Successors(TREE)
    found.answered(1, 6.0)
    assert len(found.due) == 2
    found.answered(0, 10.0)
    assert sorted(found.due) == [(5.0, 1), (7.0, 0), (10.5, 3), (12.0, 2)]
    assert (found.came[0], found.came[2], found.came[3]) == (7.0, 12.0, 10.5)
    found.answered(2, 20.0)
    assert (21.0, 4) in found.due
