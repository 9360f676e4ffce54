"""Words that several checks share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from opsctl.doctor.host import Facts
from opsctl.doctor.model import Verdict, unknown


def told(values: Iterable[object]) -> str:
    """Say each value once, with how many GPUs have it."""
    return ", ".join(f"{count}x {value}" for value, count in Counter(map(str, values)).items())


def silent(facts: Facts, field: str, what: str) -> Verdict | None:
    """Give `unknown` when NVML does not tell a value for some GPU."""
    known = {detail.index for detail in facts.details.gpus if getattr(detail, field) is not None}
    dumb = [str(gpu.index) for gpu in facts.gpus if gpu.index not in known]
    return unknown(f"NVML does not tell {what} of GPU {', '.join(dumb)}") if dumb else None
