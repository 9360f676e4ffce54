"""How long systemd has to wait for a start and a stop: worked out from the configuration. Pure."""

from __future__ import annotations

from opsctl.config.schema import Config, LaunchProfile, Timeouts

RELEASE_LOOKS = 3
"""Looks at the release of a stopped engine before serving gives up (serve/lifecycle.py)."""
KILL = 21
"""Seconds that each look may take beside `timeouts.release`: 10 s to kill, twice, and one more."""
MARGIN = 60
"""Seconds for what is outside of any deadline: Python's own start, sockets, a busy disk."""


def stop_seconds(config: Config) -> int:
    """More than `drain + stop + 3 x (release + 21)` of the slowest profile.

    The inequality is published in docs/reference/exit-codes.md. opsctl asks for more time while it
    works (`EXTEND_TIMEOUT_USEC`); the number holds for a systemd before 236, which does not know
    that, and for an opsctl that hangs.
    """
    slowest = max((limits.drain + _stop(limits) for limits in _all(config)), default=0.0)
    return int(slowest) + MARGIN


def start_seconds(config: Config) -> int:
    """The end of an earlier engine, a first start that fails, and the start of the fallback."""
    profiles = config.profiles
    first = profiles.get(config.serve.profile) or next(iter(profiles.values()), None)
    limits = first.timeouts if first is not None else Timeouts()
    fallback = max((each.start for each in _all(config)), default=limits.start)
    look_back = max((_looks(each) for each in _all(config)), default=_looks(limits))
    return int(look_back + limits.start + _stop(limits) + fallback) + MARGIN


def _stop(limits: Timeouts) -> float:
    return limits.stop + _looks(limits)


def _looks(limits: Timeouts) -> float:
    return RELEASE_LOOKS * (limits.release + KILL)


def _all(config: Config) -> list[Timeouts]:
    profiles: list[LaunchProfile] = list(config.profiles.values())
    return [profile.timeouts for profile in profiles]
