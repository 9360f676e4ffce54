"""Weekdays and times of day as people write them: `mon-fri`, `"02:00"`."""

from __future__ import annotations

import re

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES = 1440
"""Of a day."""


def parse_days(text: str) -> frozenset[int]:
    """Read `mon-fri`, `sat,sun`, `fri-mon` or `daily`, Monday as 0; raises ValueError."""
    if text == "daily":
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([a-z]+)(?:-([a-z]+))?\s*", part)
        first, last = (match[1], match[2] or match[1]) if match else ("", "")
        if first not in DAYS or last not in DAYS:
            raise ValueError(f"{text!r}: write days as mon-fri, sat,sun or daily")
        begin, end = DAYS.index(first), DAYS.index(last)
        found |= {(begin + n) % 7 for n in range((end - begin) % 7 + 1)}
    return frozenset(found)


def parse_clock(text: str) -> int:
    """Read `HH:MM`, up to 24:00, as minutes after midnight; raises ValueError."""
    match = re.fullmatch(r"([01][0-9]|2[0-4]):([0-5][0-9])", text)
    minutes = int(match[1]) * 60 + int(match[2]) if match else MINUTES + 1
    if minutes > MINUTES:
        raise ValueError(f'{text!r} is not a time of day; write it in quotes, such as "02:00"')
    return minutes


def format_clock(minutes: int) -> str:
    """Return minutes after midnight as `HH:MM`."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


def format_days(days: frozenset[int]) -> str:
    """Return weekdays in a form that `parse_days` reads."""
    if len(days) == 7:
        return "daily"
    ordered = sorted(days)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{DAYS[ordered[0]]}-{DAYS[ordered[-1]]}"
    return ",".join(DAYS[day] for day in ordered)
