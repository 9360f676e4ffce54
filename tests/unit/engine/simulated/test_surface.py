from __future__ import annotations

import itertools

import pytest

from opsctl.engine.simulated.surface import surfaces

BASELINE = surfaces().find("reference_host:baseline")
KIMI = surfaces().find("kimi_k26_dcp1:speculative")


def test_measured_points_come_back_as_measured() -> None:
    assert BASELINE.tokens_per_second(1, 0) == pytest.approx(92.6)
    assert BASELINE.tokens_per_second(30, 0) == pytest.approx(711)
    assert KIMI.tokens_per_second(16, 65536) == pytest.approx(286.5)


def test_outside_the_table_the_nearest_edge_holds() -> None:
    assert BASELINE.tokens_per_second(0, 0) == pytest.approx(92.6)
    assert BASELINE.tokens_per_second(1000, 0) == pytest.approx(773)
    assert BASELINE.tokens_per_second(1, 10**6) == pytest.approx(92.6)
    assert KIMI.tokens_per_second(16, 10**7) == pytest.approx(186.5)


def test_more_streams_never_make_each_of_them_faster() -> None:
    each = [BASELINE.tokens_per_second(count, 0) / count for count in range(1, 71)]
    assert all(later < earlier for earlier, later in itertools.pairwise(each))


def test_between_contexts_throughput_lies_between_theirs() -> None:
    assert 286.5 < KIMI.tokens_per_second(16, 48000) < 396.6


def test_an_unmeasured_cell_is_bridged_not_read_as_zero() -> None:
    # kimi_k26_dcp1 has no speculative value at 32768 tokens with one request.
    assert KIMI.tokens_per_second(1, 32768) == pytest.approx(151.6)


def test_the_demo_draft_wins_alone_and_loses_from_eight_up() -> None:
    baseline, draft = surfaces().find("demo:baseline"), surfaces().find("demo:speculative")
    ratio = {
        count: draft.tokens_per_second(count, 0) / baseline.tokens_per_second(count, 0)
        for count in (1, 4, 7, 8, 16, 30, 70)
    }
    assert ratio[1] == pytest.approx(1.4, abs=0.001)
    assert ratio[4] > 1.1
    assert ratio[7] > 1.0 > ratio[8]
    assert ratio[8] > ratio[16] > ratio[30] == pytest.approx(299.5 / 711, abs=0.001)


def test_every_table_names_its_source_and_every_column_is_positive() -> None:
    for table, columns in surfaces().tables.items():
        for column, surface in columns.items():
            assert surface.source, table
            for count, context in itertools.product((1, 3, 50, 500), (0, 1000, 100_000)):
                assert surface.tokens_per_second(count, context) > 0, (table, column)


@pytest.mark.parametrize("name", ["nowhere:baseline", "demo:nothing", "demo", ""])
def test_an_unknown_surface_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(KeyError, match="choose from"):
        surfaces().find(name)
