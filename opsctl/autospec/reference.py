"""The reference host, for a replay where nothing was measured. Pure.

Eight RTX PRO 6000, Kimi K2.5, as measured once (benchmarks of the project's host): there EAGLE-3
lost at every load. For a replay in which something can be gained, the draft is a better one: 1.4
times as fast for one request, even at 8, and as measured from 30 on.
"""

from __future__ import annotations

from opsctl.autospec.pair import Pair
from opsctl.autospec.surface import SCHEMA, Point, Provenance, Surface

SOURCE = "the reference host with a draft that wins 1.4 times at concurrency 1, and nothing at 8"
_BASELINE = {1: 92.6, 30: 711.0, 70: 773.0, 250: 773.0}
_EAGLE3 = {30: 299.5, 70: 341.0, 250: 341.0}


def reference_pair() -> Pair:
    """Return the pair, named `eagle3` and `baseline`."""
    baseline = _surface("baseline", _BASELINE, speculative=False)
    even = {1: 1.4 * _BASELINE[1], 8: baseline.tok_s(8, 0)}
    return Pair(_surface("eagle3", even | _EAGLE3, speculative=True), baseline)


def _surface(profile: str, rates: dict[int, float], *, speculative: bool) -> Surface:
    return Surface(
        schema=SCHEMA,
        profile=profile,
        fingerprint="",
        speculative=speculative,
        points=tuple(
            Point(
                concurrency=n,
                context=0,
                tok_s=rate,
                accept_length=2.4 if speculative else None,
            )
            for n, rate in rates.items()
        ),
        provenance=Provenance(note=SOURCE),
    )
