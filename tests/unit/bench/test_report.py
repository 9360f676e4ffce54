from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from opsctl.bench.report import Report, document, report
from opsctl.bench.report_html import page
from opsctl.bench.report_plot import plot
from opsctl.bench.report_svg import Axis, Dot, Line, chart
from opsctl.bench.results import save_result
from opsctl.cli.bench_report import report as command
from opsctl.errors import OpsctlError, UsageError
from tests.support.measured import (
    cell,
    cells,
    column,
    fixed_prompt,
    profile,
    reference_host,
    source,
)

NASTY = '<script>alert("x")</script>&'


def kimi() -> Report:
    """Five contexts, an accept length, and a cell that is not valid."""
    draft = cells("speculative", column("kimi_k26_dcp1", "speculative"), accept_length=2.4)
    bad = cell("speculative", 64, 0, 9999.0, repeat=9, valid=False, reason=f"N/A (58/64) {NASTY}")
    base = cells("baseline", column("kimi_k26_dcp1", "baseline"))
    return report([source("kimi", *base, *draft, bad)])


class Page(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "srcset")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_else() -> None:
    text = page(kimi())
    found = Page(text)
    assert found.links == []
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert not re.search(r"url\(|@import|https?:", text)
    assert "default-src 'none'" in text


def test_the_page_shows_every_context_with_its_charts_and_findings() -> None:
    found = Page(page(kimi()))
    for context in (0, 16384, 32768, 65536, 131072):
        assert f"Context {context} tokens" in found.text
    assert found.tags.count("svg") == 5 * 6 + 2  # six charts each, and two keys of the legend
    for told in ("Throughput, all streams", "Accept length", "Time to first token"):
        assert told in found.text
    assert "context 65536: up to concurrency" in found.text


def test_a_finding_names_its_profile_and_equal_gpus_are_counted() -> None:
    text = Page(page(report([reference_host()]))).text
    assert "eagle3: never on these prompts" in text
    assert "8 x NVIDIA RTX PRO 6000 Blackwell" in text
    assert text.count("NVIDIA RTX PRO 6000") == 1


def test_what_was_not_measured_has_no_chart() -> None:
    assert "Accept length" not in Page(page(report([reference_host()]))).text


def test_the_page_says_what_does_not_count() -> None:
    text = page(kimi())
    assert "speculative, concurrency 64, context 0, repeat 9: N/A (58/64)" in Page(text).text
    assert "9999" not in text


def test_names_and_reasons_cannot_break_out_of_the_page() -> None:
    draft = cells(NASTY, {0: {1: 90.0, 8: 300.0}})
    base = cells("baseline", {0: {1: 100.0, 8: 310.0}})
    found = report([source(NASTY, *base, *draft, workload=NASTY)])
    assert "<script" not in page(found)
    assert NASTY in Page(page(found)).text
    assert "<script" not in page(kimi())


def test_the_reference_hosts_finding_stands_at_the_top() -> None:
    text = Page(page(report([reference_host(), fixed_prompt()]))).text
    assert "speculation does not pay on this host with these prompts" in text
    assert "only at concurrency 1, +3." in text


def test_the_page_has_dark_colours_and_prints_in_light_ones() -> None:
    text = page(kimi())
    roots = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    light, dark, printed = (dict(re.findall(r"--(\w+): *#(\w+)", root)) for root in roots)
    assert set(light) == set(dark) == set(printed)
    assert brightness(light["paper"]) > 200
    assert brightness(dark["paper"]) < 60
    assert brightness(printed["paper"]) == 255
    for found in (light, dark, printed):
        for number in range(6):
            assert contrast(found[f"s{number}"], found["paper"]) >= 4.5
        assert contrast(found["quiet"], found["card"]) >= 4.5


def channels(colour: str) -> list[int]:
    colour = colour if len(colour) == 6 else "".join(c * 2 for c in colour)
    return [int(colour[i : i + 2], 16) for i in (0, 2, 4)]


def brightness(colour: str) -> float:
    return sum(channels(colour)) / 3


def contrast(left: str, right: str) -> float:
    """As WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [x / 255 for x in channels(colour)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(left), luminance(right)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# --- charts ------------------------------------------------------------------------------------

rates = st.lists(
    st.tuples(st.integers(1, 2000), st.floats(0.001, 1e6)),
    min_size=1,
    max_size=8,
    unique_by=lambda item: item[0],
)


@given(rates, st.booleans())
def test_every_value_lies_on_the_paper(values: list[tuple[int, float]], log: bool) -> None:
    dots = tuple(Dot(x, y, y * 0.9, y * 1.1) for x, y in sorted(values))
    root = ElementTree.fromstring(chart([Line("a & b", 1, dots)], Axis("tok/s", log=log)))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    [line] = root.iter("polyline")
    for pair in line.attrib["points"].split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= width and 0 <= y <= height
    for found in root.iter("text"):
        assert float(found.attrib["y"]) <= height


def test_higher_values_lie_higher_and_more_streams_further_right() -> None:
    dots = (Dot(1, 10.0), Dot(8, 40.0), Dot(64, 20.0))
    root = ElementTree.fromstring(chart([Line("a", 0, dots)], Axis("tok/s")))
    [line] = root.iter("polyline")
    at = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert at[0][0] < at[1][0] < at[2][0]
    assert at[1][1] < at[2][1] < at[0][1]
    assert at[1][0] - at[0][0] == pytest.approx(at[2][0] - at[1][0], abs=0.2)


def test_a_chart_without_values_is_none() -> None:
    assert chart([Line("a", 0, ())], Axis("tok/s")) == ""


# --- the terminal ------------------------------------------------------------------------------


def test_the_plot_shows_both_profiles_where_they_lie() -> None:
    [panel] = report([reference_host()]).panels
    lines = plot(panel, width=72).splitlines()
    assert max(map(len, lines)) <= 72
    rows = [line.partition("|")[2] for line in lines if "|" in line]
    first = {mark: next(i for i, row in enumerate(rows) if mark in row) for mark in "AB"}
    assert first["A"] < first["B"]
    assert rows[-1].startswith(("B", "*")) or rows[-2].startswith(("B", "*"))
    assert lines[-2].split() == ["1", "30", "70", "250"]
    assert lines[-1] == "A baseline, B eagle3; * several"


def test_profiles_that_meet_are_marked_as_several() -> None:
    found = report(
        [source("x", *cells("baseline", {0: {1: 9.0}}), *cells("eagle3", {0: {1: 9.0}}))]
    )
    assert "*" in plot(found.panels[0]).split("tok/s")[1].rpartition("*")[0]


# --- the report --------------------------------------------------------------------------------


def test_one_profile_alone_is_reported_without_a_comparison() -> None:
    found = report([source("run", *cells("eagle3", {0: {1: 80.0}}))])
    assert found.comparison.pairs == ()
    assert "Findings" not in Page(page(found)).text


def test_nothing_valid_is_nothing_to_report() -> None:
    bad = cell("eagle3", 1, 0, 80.0, valid=False, reason="aborted")
    with pytest.raises(UsageError, match="no valid cell"):
        report([source("run", bad)])


def test_the_document_holds_the_points_of_every_curve() -> None:
    [panel] = json.loads(json.dumps(document(report([reference_host()]))))["panels"]
    curves = {curve["profile"]: curve["points"] for curve in panel["curves"]}
    point = curves["eagle3"][1]
    assert point["concurrency"] == 30
    assert point["low"] < point["tok_s"] < point["high"]
    assert point["tok_s"] == pytest.approx(299.5, rel=0.02)


def saved(folder: Path) -> str:
    save_result(folder / "run", reference_host().result)
    return str(folder / "run")


def call(*words: str) -> None:
    app = typer.Typer()
    app.command()(command)
    typer.main.get_command(app).main(args=list(words), standalone_mode=False)


def test_the_command_writes_the_page_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(saved(tmp_path), "--html", str(tmp_path / "page.html"))
    out, err = capsys.readouterr()
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "A baseline, B eagle3" in out
    assert "does not pay on this host with these prompts" in err


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(OpsctlError, match=r"nowhere/page\.html: cannot be written"):
        call(saved(tmp_path), "--html", str(tmp_path / "nowhere/page.html"))


def test_profiles_of_one_name_have_colours_of_their_own() -> None:
    before = source("before", *cells("eagle3", {0: {1: 80.0}}))
    after = source(
        "after", *cells("eagle3", {0: {1: 96.0}}), profiles=(profile("eagle3", flags={"x": 1}),)
    )
    found = report([before, after])
    assert found.profiles == ("eagle3 (before)", "eagle3 (after)")
    assert [curve.colour for curve in found.panels[0].curves] == [0, 1]
