"""Maintenance windows: when automatic switches may happen, by the host's local time. Pure.

A window is told by what a clock on the wall shows, so on the day the clocks are put back an hour
counts twice, and on the day they are put forward a time that is skipped does not come. A window
that goes over midnight belongs to the day it begins on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from opsctl.config.auto_spec import Maintenance
from opsctl.config.weekly import MINUTES, format_clock, format_days, parse_clock, parse_days

Switches = Literal["never", "only", "forced"]
Local = Callable[[float], datetime]
"""What a clock on the wall shows at a UNIX time, without a zone; passed in, because it is I/O."""

_AHEAD = 8
"""Days looked ahead for a change: all of a week's windows, and one more for a skipped hour."""


@dataclass(frozen=True)
class Window:
    """A span of local time on some weekdays; `begin` and `end` in minutes after midnight.

    `switches`: inside it there are `never` automatic ones; or they happen `only` inside it and
    others of its kind; or a profile is `forced` to serve. An `end` that is not after `begin` is
    of the next day.
    """

    days: frozenset[int]
    begin: int
    end: int
    switches: Switches
    profile: str = ""

    def holds(self, moment: datetime) -> bool:
        """Whether a clock on the wall that shows `moment` is inside it."""
        minute = moment.hour * 60 + moment.minute
        today, yesterday = moment.weekday(), (moment.weekday() - 1) % 7
        if self.begin < self.end:
            return today in self.days and self.begin <= minute < self.end
        late = today in self.days and minute >= self.begin
        return late or (yesterday in self.days and minute < self.end)

    @classmethod
    def of(cls, written: Maintenance) -> Window:
        """Return the window that the configuration writes."""
        times = parse_clock(written.begin), parse_clock(written.end)
        return cls(parse_days(written.days), *times, written.switches, written.profile)

    def __str__(self) -> str:
        """Return it as people write it: `mon-fri 02:00-05:00`."""
        return f"{format_days(self.days)} {format_clock(self.begin)}-{format_clock(self.end)}"


@dataclass(frozen=True)
class Ruling:
    """What the windows say now: a profile to serve, or why there is no automatic switch.

    `until` is the UNIX time at which that changes; None when it does not within a week.
    """

    forced: str = ""
    why_not: str = ""
    window: str = ""
    until: float | None = None


OPEN = Ruling()
"""No window has anything to say."""


def ruling(windows: Sequence[Window], wall: float, local: Local) -> Ruling:
    """What holds at UNIX time `wall`; `never` goes before `forced`, `forced` before `only`."""
    if not windows:
        return OPEN
    now = _judge(windows, local(wall))
    if now == OPEN:
        return OPEN
    return Ruling(now.forced, now.why_not, now.window, _until(windows, now, wall, local))


def _judge(windows: Sequence[Window], moment: datetime) -> Ruling:
    inside = [window for window in windows if window.holds(moment)]
    for window in inside:
        if window.switches == "never":
            return Ruling(
                why_not=f"maintenance {window}: no automatic switches", window=str(window)
            )
    for window in inside:
        if window.switches == "forced":
            return Ruling(forced=window.profile, window=str(window))
    allowed = [window for window in windows if window.switches == "only"]
    if allowed and not any(window in inside for window in allowed):
        times = ", ".join(map(str, allowed))
        return Ruling(why_not=f"automatic switches happen only in maintenance {times}")
    return OPEN


def _until(windows: Sequence[Window], now: Ruling, wall: float, local: Local) -> float | None:
    """When another ruling than `now` begins: only the edges of windows can change it."""
    shown = local(wall)
    midnight = shown.replace(hour=0, minute=0, second=0, microsecond=0)
    edges = sorted(
        {edge % MINUTES for window in windows for edge in (window.begin, window.end)} | {0}
    )
    for day in range(_AHEAD + 1):
        for edge in edges:
            wanted = midnight + timedelta(days=day, minutes=edge)
            if wanted <= shown:
                continue
            at = _when(wanted, shown, wall, local)
            if at > wall and _judge(windows, local(at)) != now:
                return at
    return None


def _when(wanted: datetime, shown: datetime, wall: float, local: Local) -> float:
    """The UNIX time at which the clock shows `wanted`, or jumps over it."""
    at = wall + (wanted - shown).total_seconds()
    corrected = at + (wanted - local(at)).total_seconds()
    if local(corrected) == wanted:
        return corrected
    before, after = sorted((at, corrected))
    while after - before > 1.0:
        middle = math.floor((before + after) / 2)
        before, after = (middle, after) if local(middle) < wanted else (before, middle)
    return after
