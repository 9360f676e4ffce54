"""How many requests are in an engine whose own count comes late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec.load import LoadSample
from opsctl.autospec.sustained_load import SustainedLoad

# What SGLang 0.5.23 with EAGLE-3 said a second apart while eight clients, each with one request of
# 48 tokens after the other, kept eight at it (measured on its CPU engine): (running, queued).
SAID = ((8, 0), (1, 0), (1, 0), (2, 0), (1, 0), (8, 0), (0, 0), (1, 0), (0, 0), (1, 0), (7, 0))
counts = st.integers(0, 300)


def test_requests_that_the_engine_has_not_counted_yet_are_load() -> None:
    policy = SustainedLoad("eagle3", "baseline", high=5, high_for=3.0, low=2, low_for=3.0)
    actions = []
    for second, (running, queued) in enumerate(SAID):
        policy.see(LoadSample(float(second), running, queued, in_flight=8), "eagle3")
        actions.append(policy.decide("eagle3", float(second)).action)
    assert actions == ["stay"] * 3 + ["switch"] * (len(SAID) - 3)


@given(counts, counts, counts, counts, counts)
def test_it_is_never_less_than_either_says(
    running: int, queued: int, held: int, in_flight: int, stalled: int
) -> None:
    sample = LoadSample(0.0, running, queued, held, in_flight, stalled=stalled)
    assert sample.streams is not None
    assert sample.demand == sample.streams + held
    assert sample.streams >= running + queued, "others may ask the engine past the gateway"
    assert sample.streams in (running + queued, in_flight - stalled)


def test_a_request_that_waits_for_its_client_is_counted_only_if_the_engine_has_it() -> None:
    assert LoadSample(0.0, 1, 0, in_flight=8, stalled=7).streams == 1
    assert LoadSample(0.0, 5, 0, in_flight=8, stalled=7).streams == 5


@pytest.mark.parametrize(
    ("running", "queued", "in_flight", "using"),
    [
        (8, 0, 8, 8),
        (5, 0, 8, 8),  # three have just been prefilled: their tokens are counted, they are not
        (3, 0, 8, None),  # too few to say whose the tokens are
        (0, 0, 1, None),
        (4, 4, 8, 4),
        (9, 0, 8, 9),
    ],
)
def test_whose_tokens_are_in_the_cache(
    running: int, queued: int, in_flight: int, using: int | None
) -> None:
    sample = LoadSample(0.0, running, queued, in_flight=in_flight, used_tokens=800)
    assert sample.using == using
    assert LoadSample(0.0, running, queued, in_flight=in_flight).using is None


@pytest.mark.parametrize("known", [{"running": 3}, {"queued": 3}, {}])
def test_an_engine_that_says_nothing_has_an_unknown_load(known: dict[str, int]) -> None:
    sample = LoadSample(0.0, in_flight=8, **known)
    assert (sample.streams, sample.demand) == (None, None)
