"""Examine this host: choose the checks, gather what they look at, judge."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.config.schema import Config
from opsctl.doctor.facts import gather
from opsctl.doctor.model import Result, result_of
from opsctl.doctor.registry import chosen
from opsctl.doctor.sources import Sources, Subject


def run(
    only: Sequence[str] = (),
    config: Config | None = None,
    *,
    python: str | None = None,
    no_config: str = "there is no configuration",
    sources: Sources | None = None,
) -> list[Result]:
    """Ask the named checks, or all, about this host; changes nothing and creates no CUDA context.

    `config` says what the host must be fit for, `python` an interpreter to look at instead of the
    profiles'; `no_config` is why there is none. Raises UsageError for a check that is none.
    """
    checks = chosen(tuple(only))
    wanted = {name for one in checks for name in (*one.reads, *one.uses)}
    facts = gather(wanted, sources or Sources(), Subject(config, python, no_config))
    return [result_of(one, facts) for one in checks]


def failed(results: Sequence[Result]) -> bool:
    """Whether any check failed; warnings and what is unknown do not count."""
    return any(result.status == "fail" for result in results)
