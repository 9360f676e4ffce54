from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec import surface_files
from opsctl.autospec.surface import Point, Surface, SurfaceError, dump, mismatch, parse
from opsctl.engine.simulated.surface import surfaces as simulated
from tests.support.measured import ENVIRONMENT, column

GRID = {0: {1: 100.0, 4: 300.0, 16: 700.0}, 4096: {1: 80.0, 4: 220.0, 16: 400.0}}
"""Tok/s by context and concurrency."""


def surface(rows: dict[int, dict[int, float]] | None = None, **more: object) -> Surface:
    points = [
        Point(concurrency=n, context=context, tok_s=rate, low=rate * 0.99, high=rate * 1.01)
        for context, row in (GRID if rows is None else rows).items()
        for n, rate in row.items()
    ]
    facts = {"profile": "eagle3", "fingerprint": "sha256:aa", "speculative": True}
    return Surface.model_validate(
        {"schema": "opsctl/surface/v1", "points": points, **facts, **more}
    )


@pytest.mark.parametrize(("concurrency", "context"), [(1, 0), (4, 4096), (16, 0)])
def test_a_measured_place_is_told_as_measured(concurrency: int, context: int) -> None:
    assert surface().tok_s(concurrency, context) == pytest.approx(GRID[context][concurrency])


def test_between_two_places_a_surface_is_straight_over_the_logarithms() -> None:
    assert surface().tok_s(2, 0) == pytest.approx(math.sqrt(100 * 300))
    middle = math.expm1(math.log1p(4096) / 2)
    assert surface().tok_s(1, middle) == pytest.approx(math.sqrt(100 * 80))


@pytest.mark.parametrize(
    ("concurrency", "context", "wanted"),
    [(0.2, 0, 100), (1000, 0, 700), (16, 10**6, 400), (1000, 10**6, 400), (4, -5, 300)],
)
def test_outside_a_surface_is_clamped(concurrency: float, context: float, wanted: float) -> None:
    assert surface().tok_s(concurrency, context) == pytest.approx(wanted)
    if concurrency > 16 or context > 4096:
        assert not surface().covers(concurrency, context)


@given(
    rates=st.lists(st.floats(1.0, 5000.0), min_size=6, max_size=6),
    concurrency=st.floats(0.1, 1e6),
    context=st.floats(0.0, 1e7),
)
def test_no_place_is_promised_more_than_the_best_that_was_measured(
    rates: list[float], concurrency: float, context: float
) -> None:
    rows = {
        0: dict(zip((1, 8, 64), rates, strict=False)),
        999: dict(zip((1, 8, 64), rates[3:], strict=True)),
    }
    told = surface(rows).tok_s(concurrency, context)
    assert min(rates) * 0.999 <= told <= max(rates) * 1.001


@pytest.mark.parametrize(
    ("table", "name"), [("kimi_k26_dcp1", "speculative"), ("reference_host", "baseline")]
)
@pytest.mark.parametrize("concurrency", [1, 3, 17, 100, 400])
def test_the_simulated_engine_and_a_surface_of_its_table_agree(
    table: str, name: str, concurrency: int
) -> None:
    told = surface(column(table, name)).tok_s(concurrency, 20_000)
    assert told == pytest.approx(
        simulated().find(f"{table}:{name}").tokens_per_second(concurrency, 20_000)
    )


def test_bounds_go_with_the_rate_and_are_unknown_when_one_repeat_was_measured() -> None:
    bounds = surface().bounds(2, 0)
    assert bounds == pytest.approx((0.99 * math.sqrt(30000), 1.01 * math.sqrt(30000)))
    single = surface(points=[Point(concurrency=1, context=0, tok_s=100.0)])
    assert single.bounds(1, 0) is None


def test_the_accept_length_is_that_of_the_nearest_place() -> None:
    points = [
        Point(concurrency=1, context=0, tok_s=100.0, accept_length=2.9),
        Point(concurrency=64, context=0, tok_s=700.0, accept_length=2.1),
    ]
    assert surface(points=points).accept_length(3, 0) == 2.9
    assert surface(points=points).accept_length(30, 0) == 2.1
    assert surface().accept_length(1, 0) is None


# --- whether it still fits ---------------------------------------------------------------------

GPU = {"index": 0, "uuid": "GPU-1", "name": "RTX PRO 6000", "power_limit_w": 600}
MEASURED = {
    "versions": {"sglang": "0.5.23", "patches": None},
    "environment": {
        "driver": "580.95.05",
        "gpus": [{"name": "RTX PRO 6000", "power_limit_w": 600}],
    },
}


def test_a_surface_fits_what_it_was_measured_on() -> None:
    host = {"driver": "580.95.05", "kernel": "6.12", "gpus": [GPU]}
    versions = {"sglang": "0.5.23", "patches": "allreduce-fusion"}
    found = mismatch(surface(**MEASURED), "sha256:aa", versions=versions, environment=host)
    assert found is None


@pytest.mark.parametrize(
    ("fingerprint", "versions", "host", "words"),
    [
        ("sha256:bb", {}, {}, "profile eagle3 has changed since it was measured"),
        ("sha256:aa", {"sglang": "0.5.22"}, {}, "sglang was 0.5.23"),
        ("sha256:aa", {"sglang": None}, {}, "sglang was 0.5.23 .* is unknown"),
        ("sha256:aa", {}, {"driver": "575.57.08"}, "driver was 580.95.05"),
        ("sha256:aa", {}, {"driver": None}, "driver was 580.95.05 .* is unknown"),
        ("sha256:aa", {}, {"gpus": [GPU | {"power_limit_w": 300}]}, "gpus was"),
        ("sha256:aa", {}, {"gpus": [GPU, GPU]}, "gpus was"),
    ],
)
def test_a_surface_of_something_else_is_refused_with_the_reason(
    fingerprint: str, versions: dict[str, str], host: dict[str, object], words: str
) -> None:
    found = mismatch(
        surface(**MEASURED),
        fingerprint,
        versions={"sglang": "0.5.23"} | versions,
        environment={"driver": "580.95.05", "gpus": [GPU]} | host,
    )
    assert found is not None
    assert re.search(words, found)


def test_a_surface_without_a_fingerprint_fits_nothing() -> None:
    assert mismatch(surface(fingerprint=""), "") is not None


# --- files -------------------------------------------------------------------------------------


def test_a_surface_comes_back_as_it_was_written(tmp_path: Path) -> None:
    made = surface(environment=dict(ENVIRONMENT), workload="mixed")
    path = surface_files.save(tmp_path, made)
    assert path == tmp_path / "surfaces" / "eagle3.json"
    assert surface_files.load(tmp_path, "eagle3") == made
    assert parse(dump(made), "here") == made


def test_a_profile_that_was_never_measured_has_no_surface(tmp_path: Path) -> None:
    assert surface_files.load(tmp_path, "eagle3") is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "opsctl/surface/v2"}', "{"])
def test_a_file_that_is_no_surface_is_an_error_and_not_never_measured(
    tmp_path: Path, text: str
) -> None:
    path = surface_files.path_of(tmp_path, "eagle3")
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(SurfaceError, match=r"eagle3\.json: not a surface"):
        surface_files.load(tmp_path, "eagle3")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SurfaceError, match="nowhere"):
        surface_files.read(Path("/nowhere/x.json"))
