"""How a census is shown: 80 columns, colours with a meaning, one line per tree of idle helpers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from rich.console import Console

from opsctl.cli import gpu_render
from opsctl.cli.gpu_explain import explanation, explanation_table
from opsctl.cli.gpu_render import census_table, document, ranges, short_name, watch_census
from opsctl.cli.main import run
from opsctl.cli.options import Output
from opsctl.gpu import survey
from opsctl.gpu.census import census
from opsctl.gpu.model import Census, Gpu, Snapshot
from tests.support.proc_tree import (
    ALL_DEVICES,
    GIB,
    MIB,
    NONCE,
    engine,
    gpu,
    process,
    snapshot,
    table,
)

MAIN = process(1000, "python -m sglang.launch_server", nonce=NONCE, ppid=900, age=7300.0)
WORKERS = [process(1010 + n, f"python worker {n}", ppid=1000, session=1000) for n in range(20)]
RANK = process(
    1001, "sglang::scheduler_TP0", ppid=1000, session=1000, devices=ALL_DEVICES, age=90.0
)
LOST = process(3000, "sglang::scheduler_TP1 " + "x" * 150, devices=ALL_DEVICES)


def host(*gpus: Gpu) -> Census:
    boards = gpus or (gpu(0, used=88 * GIB, power=312.4, power_limit=600.0), gpu(1))
    rows = snapshot((1001, 0, 87 * GIB), (3000, 1, 40 * MIB), gpus=boards)
    found = table(MAIN, RANK, LOST, process(5000, "-bash"), *WORKERS)
    return census(rows, found, [engine()], me=999, host_pids=True)


def shown(taken: Census, *, width: int = 80, colours: bool = False) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        highlight=False,
        force_terminal=colours,
        no_color=not colours,
        color_system="standard" if colours else None,
    )
    with console.capture() as capture:
        console.print(census_table(taken))
    return capture.get()


def test_nothing_is_wider_than_80_columns() -> None:
    lines = shown(host()).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80


def test_every_holder_stands_in_one_row_with_its_reason_below() -> None:
    lines = [line.rstrip() for line in shown(host()).splitlines()]
    row = next(i for i, line in enumerate(lines) if line.startswith("managed       1001"))
    assert lines[row].split() == ["managed", "1001", "alice", "2m", "87.0", "0", RANK.title]
    assert lines[row + 1].startswith("    is in the session 1000 of the engine recorded in")
    assert any(line.startswith("stray engine  3000") and "0.04" in line for line in lines)


def test_processes_of_a_tree_that_hold_nothing_are_told_in_one_line() -> None:
    text = " ".join(shown(host()).split())
    assert "and 20 more like it without GPU memory: 1010, 1011," in text
    assert "python worker 3" not in text


def test_a_gpu_is_one_row() -> None:
    narrow = gpu(0, used=88 * GIB, pcie_generation=1, pcie_width=8, pcie_width_max=16)
    lines = shown(host(narrow, gpu(1, fault="GPU is lost"))).splitlines()
    assert lines[2].split() == [
        *("0", "RTX", "PRO", "6000", "12.0", "88.0/95.0", "-/-", "gen1", "x8", "of", "x16", "ok")
    ]
    assert lines[3].split()[-1] == "fault"


def test_what_nvml_does_not_say_is_a_dash_and_not_a_zero() -> None:
    unknown = Gpu(0)
    assert shown(census(Snapshot("ok", gpus=(unknown,)), {}, (), me=1)).splitlines()[2].split() == [
        *("0", "-", "-", "-/-", "-/-", "-", "ok")
    ]


def test_colours_are_left_out_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[32mmanaged" in shown(host(), colours=True)
    assert "\x1b[" not in shown(host())


@pytest.mark.parametrize(
    ("state", "begins"),
    [
        ("absent", "No GPU can be seen: no library."),
        ("fault", "The driver is faulty: no library."),
        ("unresponsive", "The driver does not answer: no library."),
    ],
)
def test_a_driver_that_tells_nothing_is_said_in_words(state: str, begins: str) -> None:
    taken = census(Snapshot(state, "no library"), {}, (), me=1)  # type: ignore[arg-type]
    assert shown(taken).startswith(begins)


def test_an_idle_host_says_so() -> None:
    assert "Nothing holds a GPU." in shown(census(snapshot(), {}, (), me=1))


@pytest.mark.parametrize(
    ("numbers", "text"), [((), "-"), ((3,), "3"), ((0, 1, 2, 5), "0-2,5"), (range(8), "0-7")]
)
def test_runs_of_numbers_are_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


def test_names_of_boards_are_shortened_to_what_tells_them_apart() -> None:
    assert short_name("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition") == "RTX PRO 6000"
    assert short_name("NVIDIA GeForce RTX 5090") == "RTX 5090"
    assert short_name(None) == "-"


def test_a_gpu_with_a_fault_is_at_fault_in_the_document() -> None:
    said = document(host(gpu(0, used=88 * GIB), gpu(1, fault="GPU is lost")))
    assert [board["state"] for board in said["gpus"]] == ["ok", "fault"]


# --- explain -----------------------------------------------------------------------------------


def explained(pid: int) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(explanation_table(explanation(host(), pid)))
    return capture.get()


def test_explain_says_what_a_reap_would_do_and_why_not() -> None:
    assert "would leave it alone: it serves" in " ".join(explained(1001).split())
    assert "would end it with --include stray" in " ".join(explained(3000).split())


def test_explain_shows_the_tree_with_verdicts() -> None:
    tree = explained(1001).partition("tree")[2].splitlines()
    assert [line.split()[0] for line in tree] == ["1000", "1001"]
    assert tree[1].endswith("[managed]") or "[managed]" in tree[1]


def test_explain_of_what_holds_nothing_says_so() -> None:
    said = explanation(host(), 5000)
    assert (said["verdict"], said["exists"]) == (None, True)
    assert said["evidence"] == [
        "holds no GPU memory that NVML tells of, and has no /dev/nvidia* open"
    ]


def test_explain_survives_parents_in_a_circle() -> None:
    circle = {n: process(n, ppid=5 - n, devices=ALL_DEVICES) for n in (2, 3)}
    taken = census(snapshot(), circle, (), me=999)
    assert [parent["pid"] for parent in explanation(taken, 2)["parents"]] == [3]
    assert [child["pid"] for child in explanation(taken, 2)["children"]] == [3]


# --- the commands ------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, ...]]]:
    """Replaces the readers; the state directories that were asked for."""
    asked: list[tuple[object, ...]] = []

    def look(directories: list[str], **_: object) -> Census:
        asked.append(tuple(directories))
        return host()

    monkeypatch.setattr(survey, "look", look)
    yield asked


@pytest.mark.parametrize(
    ("arguments", "directories"),
    [
        (["gpu", "ps"], ()),
        (["gpu", "ps", "--state-dir", "/a", "--state-dir", "/b"], ("/a", "/b")),
        (["--state-dir", "/c", "gpu", "ps"], ("/c",)),
        (["--state-dir", "/c", "gpu", "explain", "7", "--state-dir", "/a"], ("/a",)),
    ],
)
def test_state_directories_may_stand_before_or_after(
    arguments: list[str], directories: tuple[str, ...], looks: list[tuple[object, ...]]
) -> None:
    assert run(arguments) == 0
    assert looks == [directories]


@pytest.mark.parametrize(
    ("state", "code"), [("ok", 0), ("absent", 0), ("fault", 4), ("unresponsive", 4)]
)
def test_the_exit_code_says_whether_the_driver_could_be_read(
    state: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = census(Snapshot(state, "because"), {}, (), me=1)  # type: ignore[arg-type]
    monkeypatch.setattr(survey, "look", lambda *_, **__: taken)
    assert run(["gpu", "ps", "-o", "json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["driver"]["why"]) == ("opsctl/gpu/v1", "because")


def test_watching_looks_again_until_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(gpu_render.time, "sleep", sleep)
    for output in (Output.JSON, Output.TABLE):
        waited.clear()
        with pytest.raises(KeyboardInterrupt):
            watch_census(host, output, "s", 2.0)
        assert waited == [2.0, 2.0, 2.0]
    assert capsys.readouterr().out.count('"schema"') == 3
