"""Which processes count as an engine of an environment; the table of processes is made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from opsctl.patching import occupants
from opsctl.patching.environment import Environment
from opsctl.system import procfs

ROOT = Path("/env/lib/python3.11/site-packages")


def running(
    monkeypatch: pytest.MonkeyPatch,
    title: str,
    mapped: set[str] | None = None,
    *,
    state: str = "S",
    path: str | None = None,
    root: Path = ROOT,
    ancestors: tuple[int, ...] = (),
) -> str | None:
    """What is found when one process of this command line runs."""
    stat = SimpleNamespace(
        pid=7, ppid=1, state=state, comm=title[:15], start_time=1, session=7, group=7
    )
    monkeypatch.setattr(procfs, "ancestors", lambda _: ancestors)
    monkeypatch.setattr(procfs, "snapshot", lambda: {7: stat})
    monkeypatch.setattr(procfs, "title", lambda *_: title)
    monkeypatch.setattr(procfs, "mapped_files", lambda _: mapped and frozenset(mapped))
    monkeypatch.setattr(procfs, "environ_value", lambda *_: path)
    return occupants.running(Environment(root, None, {}))


LIBRARY = f"{ROOT}/sgl_kernel/sm100/common_ops.abi3.so"
TORCH = f"{ROOT}/torch/lib/libtorch.so"


@pytest.mark.parametrize(
    ("title", "mapped"),
    [
        ("/env/bin/python -m sglang.launch_server --tp 8", None),
        ("/env/bin/python3 -u -m sglang.launch_server", set[str]()),
        ("/env/bin/python3 /env/bin/sglang serve org/model", None),
        ("python -m sglang.launch_server", {TORCH}),
        ("sglang::scheduler_TP0", {TORCH}),
        ("python batch.py", {LIBRARY}),
        ("node", {f"{ROOT}/flashinfer/x.so"}),
    ],
)
def test_an_engine_is_known_by_its_name_and_where_it_is_from_or_by_its_libraries(
    monkeypatch: pytest.MonkeyPatch, title: str, mapped: set[str] | None
) -> None:
    assert running(monkeypatch, title, mapped) == f"pid 7 ({title})"


@pytest.mark.parametrize(
    ("title", "mapped"),
    [
        ("/other/bin/python -m sglang.launch_server", None),
        ("/other/bin/python -m sglang.launch_server", {"/other/lib/sgl_kernel/x.so"}),
        ("/env/bin/python -m pip list", {TORCH}),
        ("grep -r sglang.launch_server /env/bin/python", None),
        ("sglang::scheduler_TP0", {"/other/torch.so"}),
        ("python notebook.py", {f"{ROOT}-old/sgl_kernel/x.so"}),
        ("bin/python -m sglang.launch_server", None),
        ("", None),
    ],
)
def test_others_are_none(
    monkeypatch: pytest.MonkeyPatch, title: str, mapped: set[str] | None
) -> None:
    assert running(monkeypatch, title, mapped) is None


def test_the_dead_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for state in "ZX":
        assert running(monkeypatch, "/env/bin/python -m sglang.launch_server", state=state) is None


def test_a_program_called_by_its_name_only_is_looked_for_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "env/lib/python3.11/site-packages"
    for folder in (tmp_path / "env/bin", tmp_path / "other/bin"):
        folder.mkdir(parents=True)
        (folder / "python").write_text("#!/bin/sh\n")
        (folder / "python").chmod(0o755)
    title, own, other = (
        "python -m sglang.launch_server",
        tmp_path / "env/bin",
        tmp_path / "other/bin",
    )
    assert running(monkeypatch, title, path=f"{own}:{other}", root=root) is not None
    assert running(monkeypatch, title, path=f"{other}:{own}", root=root) is None
    assert running(monkeypatch, title, path=None, root=root) is None


def test_who_asks_and_those_above_it_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    title = "/env/bin/python -m sglang.launch_server"
    assert running(monkeypatch, title, ancestors=(7, 1)) is None
