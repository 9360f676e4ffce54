from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.autospec.windows import OPEN, Switches, Window, ruling
from opsctl.config.weekly import MINUTES as DAY
from opsctl.config.weekly import parse_clock, parse_days

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [ZoneInfo(name) for name in ("UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns")]


def berlin(wall: float) -> datetime:
    return shown(BERLIN, wall)


def shown(zone: ZoneInfo, wall: float) -> datetime:
    return datetime.fromtimestamp(wall, zone).replace(tzinfo=None)


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def window(
    days: str, begin: str, end: str, switches: Switches = "never", profile: str = ""
) -> Window:
    return Window(parse_days(days), parse_clock(begin), parse_clock(end), switches, profile)


windows = st.builds(
    Window,
    days=st.frozensets(st.integers(0, 6), min_size=1),
    begin=st.integers(0, DAY - 1),
    end=st.integers(0, DAY),
    switches=st.sampled_from(["never", "only", "forced"]),
    profile=st.sampled_from(["eagle3", "baseline"]),
)
walls = st.integers(1_700_000_000, 1_900_000_000).map(float)


@pytest.mark.parametrize(
    ("moment", "inside"),
    [
        ("2026-11-30T01:59", False),  # a Monday
        ("2026-11-30T02:00", True),
        ("2026-11-30T04:59", True),
        ("2026-11-30T05:00", False),
        ("2026-12-05T03:00", False),  # a Saturday
    ],
)
def test_a_window_holds_on_its_days_from_begin_until_before_end(moment: str, inside: bool) -> None:
    assert window("mon-fri", "02:00", "05:00").holds(datetime.fromisoformat(moment)) is inside


@pytest.mark.parametrize(
    ("moment", "inside"),
    [
        ("2026-12-04T21:59", False),  # a Friday
        ("2026-12-04T22:00", True),
        ("2026-12-05T00:00", True),
        ("2026-12-05T05:59", True),
        ("2026-12-05T06:00", False),
        ("2026-12-05T22:30", False),  # Saturday evening is not asked for
        ("2026-12-04T03:00", False),  # nor is Thursday night
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_it_begins_on(moment: str, inside: bool) -> None:
    assert window("fri", "22:00", "06:00").holds(datetime.fromisoformat(moment)) is inside


def test_a_window_of_a_whole_day_never_ends_within_the_day() -> None:
    whole = window("daily", "00:00", "24:00")
    for hour in range(24):
        assert whole.holds(datetime(2026, 12, 5, hour, 59))


def test_inside_a_never_window_there_is_no_switch_and_it_says_until_when() -> None:
    found = ruling([window("mon", "02:00", "05:00")], at("2026-11-30T04:30"), berlin)
    assert found.why_not == "maintenance mon 02:00-05:00: no automatic switches"
    assert found.until == at("2026-11-30T05:00")


def test_only_anywhere_means_nowhere_else() -> None:
    night = [window("daily", "02:00", "05:00", "only")]
    outside = ruling(night, at("2026-11-30T12:00"), berlin)
    assert outside.why_not == "automatic switches happen only in maintenance daily 02:00-05:00"
    assert outside.until == at("2026-12-01T02:00")
    assert ruling(night, at("2026-11-30T03:00"), berlin) == OPEN


def test_a_forced_window_names_its_profile_and_goes_before_only() -> None:
    both = [
        window("daily", "02:00", "05:00", "only"),
        window("sat,sun", "10:00", "12:00", "forced", "baseline"),
    ]
    found = ruling(both, at("2026-12-05T10:30"), berlin)
    assert (found.forced, found.why_not) == ("baseline", "")
    assert found.until == at("2026-12-05T12:00")


def test_never_goes_before_forced() -> None:
    both = [
        window("daily", "00:00", "24:00", "forced", "baseline"),
        window("daily", "10:00", "11:00"),
    ]
    found = ruling(both, at("2026-12-05T10:30"), berlin)
    assert found.forced == ""
    assert found.why_not


def test_an_hour_that_comes_twice_counts_twice() -> None:
    night = [window("sun", "02:00", "03:00")]
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()  # 02:30, summer time
    again = first + 3600  # 02:30, winter time
    assert ruling(night, first, berlin).why_not
    assert ruling(night, again, berlin).why_not
    assert ruling(night, again + 1800, berlin) == OPEN


def test_an_hour_that_is_skipped_does_not_come() -> None:
    night = [window("sun", "02:00", "03:00")]
    before = datetime(2026, 3, 29, 0, 59, tzinfo=UTC).timestamp()  # 01:59; then 03:00
    assert ruling(night, before, berlin) == OPEN
    assert ruling(night, before + 60, berlin) == OPEN


@pytest.mark.parametrize(
    ("now", "end", "hours"),
    [
        ("2026-10-24T23:00", "2026-10-25T06:00", 8),  # the clocks are put back in between
        ("2026-03-28T23:00", "2026-03-29T06:00", 6),  # and forward
        ("2026-05-28T23:00", "2026-05-29T06:00", 7),
    ],
)
def test_the_end_of_a_night_is_right_also_when_the_clocks_change(
    now: str, end: str, hours: int
) -> None:
    found = ruling([window("daily", "22:00", "06:00")], at(now), berlin)
    assert found.until == at(end) == at(now) + hours * 3600


def test_an_end_that_the_clocks_skip_comes_when_they_are_past_it() -> None:
    found = ruling([window("daily", "22:00", "02:30")], at("2026-03-29T01:00"), berlin)
    assert found.until == at("2026-03-29T03:00")


@given(st.lists(windows, max_size=4), walls, st.sampled_from(ZONES))
def test_until_is_the_first_moment_at_which_something_else_holds(
    some: list[Window], wall: float, zone: ZoneInfo
) -> None:
    now = ruling(some, wall, lambda t: shown(zone, t))
    if now.until is None:
        return
    assert now.until > wall
    then = ruling(some, now.until, lambda t: shown(zone, t))
    assert (then.forced, then.why_not, then.window) != (now.forced, now.why_not, now.window)
    # The clocks may be changed between; on all other days nothing changes before.
    if shown(zone, now.until) - shown(zone, wall) == datetime.fromtimestamp(
        now.until, UTC
    ) - datetime.fromtimestamp(wall, UTC):
        just_before = ruling(some, now.until - 1, lambda t: shown(zone, t))
        assert (just_before.forced, just_before.why_not) == (now.forced, now.why_not)


@given(st.lists(windows, max_size=4), walls)
def test_a_switch_is_forced_or_forbidden_but_never_both(some: list[Window], wall: float) -> None:
    now = ruling(some, wall, berlin)
    assert not (now.forced and now.why_not)
    if not any(window.switches == "forced" for window in some):
        assert now.forced == ""


@settings(max_examples=15)
@given(windows)
def test_in_a_week_a_window_holds_its_length_on_each_of_its_days(one: Window) -> None:
    monday = datetime(2026, 11, 30)
    minutes = sum(one.holds(monday + timedelta(minutes=n)) for n in range(7 * DAY))
    length = one.end - one.begin if one.begin < one.end else DAY - one.begin + one.end
    assert minutes == length * len(one.days)
