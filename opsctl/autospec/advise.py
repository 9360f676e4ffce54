"""What to do about a pair of profiles, and what cannot be said, as data. Pure."""

from __future__ import annotations

from typing import Any

from opsctl.autospec.bands import Band


def band_document(band: Band) -> dict[str, Any]:
    """Return one context's verdict as JSON can hold it."""
    return {
        "context": band.context,
        "kind": band.kind,
        "means": band.means,
        "words": band.words,
        "concurrency": band.concurrency,
        "low": band.low,
        "high": band.high,
    }
