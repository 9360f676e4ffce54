"""The order of a run, and how its numbers are written."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.bench.grid import Grid, distinct, numbers
from opsctl.errors import UsageError
from tests.support.bench import cell


def profiles(grid: Grid, done: set[str] | None = None) -> str:
    return " ".join(visit.profile for visit in grid.visits(done or set()))


def test_profiles_alternate_a_bb_a() -> None:
    grid = Grid(("A", "B"), (1, 8), repeats=2)
    order = [spot.profile for visit in grid.visits() for spot in visit.spots]
    assert order == ["A", "A", "B", "B", "B", "B", "A", "A"]


def test_a_profile_that_comes_twice_in_a_row_is_started_once() -> None:
    assert profiles(Grid(("A", "B"), (1,), repeats=2)) == "A B A"
    assert profiles(Grid(("A", "B"), (1,), repeats=4)) == "A B A B A"


def test_every_other_repeat_goes_through_the_cells_backwards() -> None:
    visits = Grid(("A",), (1, 2), (0, 4096), repeats=2).visits()
    cells = [(spot.repeat, spot.context, spot.concurrency) for spot in visits[0].spots]
    assert cells[:4] == [(0, 0, 1), (0, 0, 2), (0, 4096, 1), (0, 4096, 2)]
    assert cells[4:] == [(1, 4096, 2), (1, 4096, 1), (1, 0, 2), (1, 0, 1)]


def test_what_is_done_is_neither_measured_nor_started_for() -> None:
    grid = Grid(("A", "B"), (1, 8), repeats=1)
    done = {"A-c1-k0-r0", "A-c8-k0-r0", "B-c1-k0-r0"}
    assert [spot.key for visit in grid.visits(done) for spot in visit.spots] == ["B-c8-k0-r0"]
    assert profiles(grid, done) == "B"


def test_keys_are_those_of_the_result_files() -> None:
    spot = Grid(("A",), (8,), (4096,), repeats=1).visits()[0].spots[0]
    made = cell(profile="A", concurrency=8, context=4096, repeat=0)
    assert spot.key == made.key


names = st.lists(st.sampled_from("ABCD"), min_size=1, max_size=4, unique=True)


@given(names, st.integers(1, 6), st.integers(1, 4))
def test_every_cell_is_measured_exactly_once(profiles: list[str], repeats: int, cells: int) -> None:
    grid = Grid(tuple(profiles), tuple(range(1, cells + 1)), repeats=repeats)
    keys = [spot.key for visit in grid.visits() for spot in visit.spots]
    assert len(keys) == len(set(keys)) == len(profiles) * repeats * cells


@given(names.filter(lambda found: len(found) > 1), st.integers(1, 3))
def test_no_profile_has_a_better_place_on_average(profiles: list[str], pairs: int) -> None:
    """With an even number of repeats, the mean position of every profile is the same."""
    grid = Grid(tuple(profiles), (1, 2), repeats=2 * pairs)
    places: dict[str, list[int]] = {}
    spots = [spot for visit in grid.visits() for spot in visit.spots]
    for place, spot in enumerate(spots):
        places.setdefault(spot.profile, []).append(place)
    means = [sum(found) / len(found) for found in places.values()]
    assert max(means) - min(means) < 1e-9


@given(names, st.integers(1, 4))
def test_two_visits_in_a_row_are_never_of_one_profile(profiles: list[str], repeats: int) -> None:
    visits = Grid(tuple(profiles), (1,), repeats=repeats).visits()
    assert all(one.profile != next_one.profile for one, next_one in pairwise(visits))


def test_numbers_are_read_sorted_and_once() -> None:
    assert numbers("16k, 0,4k,0", "--context", least=0) == (0, 4096, 16384)


@pytest.mark.parametrize("text", ["", "1,,2", "0", "-1", "two", "1.5", "4m"])
def test_what_is_no_number_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(UsageError, match="--concurrency"):
        numbers(text, "--concurrency", least=1)


def test_a_profile_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        distinct(["A", "B", "A"])
