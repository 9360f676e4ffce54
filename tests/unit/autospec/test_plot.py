"""The SVG of a replay."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from opsctl.autospec.arrivals import synthetic
from opsctl.autospec.cost import Mechanism
from opsctl.autospec.patterns import PATTERNS
from opsctl.autospec.plot import MOST_MARKS, WIDTH, plot
from opsctl.autospec.reference import reference_pair
from opsctl.autospec.replay import Replay, Setting, replay
from opsctl.autospec.suite import COSTS, Case

SVG = "{http://www.w3.org/2000/svg}"


def played(mechanism: Mechanism = "restart", pattern: str = "bursts", hours: float = 1.0) -> Replay:
    pair = reference_pair()
    requests = PATTERNS[pattern].requests(synthetic(2000, 1), pair, hours=hours)
    case = Case("a <trace> & more", pattern, mechanism, "reference", "right")
    policies = ("sustained_load:8/3:5/5", "cost_aware")
    return replay(Setting(requests, pair, case, COSTS[mechanism], policies))


def elements(found: Replay, tag: str, kind: str) -> list[ET.Element]:
    return [x for x in ET.fromstring(plot(found)).iter(SVG + tag) if x.get("class") == kind]


@pytest.fixture(scope="module")
def restarts() -> Replay:
    return played()


def test_it_is_a_picture_of_its_own_that_needs_nothing_else(restarts: Replay) -> None:
    text = plot(restarts)
    root = ET.fromstring(text)
    assert (root.tag, root.get("width")) == (f"{SVG}svg", str(WIDTH))
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert "a &lt;trace&gt; &amp; more" in text


def test_everything_lies_on_the_paper(restarts: Replay) -> None:
    root = ET.fromstring(plot(restarts))
    height = float(root.get("height") or 0)
    for element in root.iter(SVG + "rect"):
        right = float(element.get("x") or 0) + float(element.get("width") or 0)
        lower = float(element.get("y") or 0) + float(element.get("height") or 0)
        assert right <= WIDTH + 0.2
        assert lower <= height + 0.2
    for text in root.iter(SVG + "text"):
        assert 0 <= float(text.get("y") or 0) <= height


def test_bands_show_who_served_and_when_nobody_did(restarts: Replay) -> None:
    outcome = restarts.verdict.row("sustained_load:8/3:5/5")
    assert outcome.switches
    titles = [x.findtext(SVG + "title") or "" for x in ET.fromstring(plot(restarts)).iter()]
    first = outcome.switches[0]
    assert f"nobody from {first.closed:.0f} s to {first.opened:.0f} s" in titles
    assert f"eagle3 from 0 s to {first.closed:.0f} s" in titles


def test_each_switch_has_its_mark(restarts: Replay) -> None:
    marks = elements(restarts, "path", "switch")
    rows = [row.outcome for row in restarts.verdict.rows] + [restarts.verdict.hindsight.outcome]
    assert len(marks) == 1 + sum(len(outcome.switches) for outcome in rows)  # one in the key


def test_a_wish_that_a_guard_forbade_has_its_mark() -> None:
    found = played(hours=0.5)
    setting = replace(found.setting, rules=replace(found.setting.rules, switches_per_hour=0))
    forbidden = replay(setting)
    wishes = sum(len(track.decisions) for track in forbidden.tracks.values())
    assert wishes > 0
    assert len(elements(forbidden, "circle", "wish")) == 1 + wishes


def test_held_requests_are_drawn_where_there_were_some(restarts: Replay) -> None:
    [held, _] = elements(restarts, "path", "held")
    heights = {float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", held.get("d") or "")}
    assert len(heights) > 2
    free = played("in_engine", hours=0.3)
    for area in elements(free, "path", "held"):
        flat = {float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", area.get("d") or "")}
        assert len(flat) == 1


def test_thousands_of_moves_inside_an_engine_do_not_hide_the_bands() -> None:
    found = played("in_engine", "flapping", hours=0.5)
    outcome = found.verdict.rows[-1].outcome
    many = replace(outcome, switches=outcome.switches * (MOST_MARKS // len(outcome.switches) + 1))
    rows = (*found.verdict.rows[:-1], replace(found.verdict.rows[-1], outcome=many))
    crowded = replace(found, verdict=replace(found.verdict, rows=rows))
    assert len(elements(crowded, "path", "switch")) < MOST_MARKS
