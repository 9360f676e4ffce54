"""Xids: what the log says, and what it asks for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.gpu import kernel_log
from opsctl.gpu.kernel_log import Xid, parse

LOST = (
    "NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
RESET = (
    "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 "
    "(GPU Reset Required)"
)
REBOOT = RESET.replace("0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)")
WITHDRAWN = RESET.replace("0x0 (None) to 0x1 (GPU Reset Required)", "0x1 (GPU Reset) to 0x0 (None)")


def test_a_record_of_dev_kmsg_is_read_whole() -> None:
    assert parse([f"4,1234,98765432,-;{LOST}"]) == (
        Xid(
            79,
            "0000:c1:00.0",
            98.765432,
            "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "reboot",
        ),
    )


@pytest.mark.parametrize(
    ("prefix", "time"),
    [
        ("[   98.765432] ", 98.765432),
        ("[   98.765432] host kernel: ", 98.765432),
        ("<4>[   98.765432] ", 98.765432),
        ("2026-11-19T20:06:01+0000 host kernel: ", None),
        ("", None),
    ],
)
def test_dmesg_and_journal_lines_are_read_alike(prefix: str, time: float | None) -> None:
    (xid,) = parse([prefix + LOST])
    assert (xid.code, xid.bus_id, xid.time) == (79, "0000:c1:00.0", time)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (13, "restart engine"),
        (31, "restart engine"),
        (43, "restart engine"),
        (45, "none"),
        (48, "reset"),
        (63, "none"),
        (64, "reset"),
        (74, "reset"),
        (79, "reboot"),
        (94, "restart engine"),
        (95, "reset"),
        (119, "reset"),
        (120, "reset"),
        (140, "reset"),
        (777, "none"),
    ],
)
def test_codes_ask_for_what_the_catalogue_says(code: int, remedy: str) -> None:
    (xid,) = parse([f"NVRM: Xid (PCI:0000:01:00): {code}, pid=1, name=python, text"])
    assert xid.remedy == remedy


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        (RESET, "reset"),
        (REBOOT, "reboot"),
        (RESET.replace("GPU Reset Required", "Drain and Reset"), "reset"),
        (RESET.replace("GPU Reset Required", "Drain P2P"), "none"),
        (WITHDRAWN, "none"),
    ],
)
def test_xid_154_says_itself_what_to_do(line: str, remedy: str) -> None:
    assert parse([line])[0].remedy == remedy


def test_a_recovery_action_taken_back_takes_back_what_was_asked_for_on_that_gpu() -> None:
    timeout = "NVRM: Xid (PCI:0000:01:00): 119, pid=1, name=python, Timeout after 6s"
    found = parse([timeout, RESET, LOST, WITHDRAWN])
    assert [(xid.code, xid.remedy) for xid in found] == [
        (119, "none"),
        (154, "none"),
        (79, "reboot"),  # another GPU
        (154, "none"),
    ]


def test_loading_the_driver_anew_ends_the_story() -> None:
    loading = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
    assert [xid.code for xid in parse([LOST, loading, RESET])] == [154]


@pytest.mark.parametrize(
    ("line", "bus"),
    [
        ("NVRM: Xid (0000:03:00): 31, Ch 0000000b", "0000:03:00.0"),
        ("NVRM: Xid (PCI:0001:41:00.0): 31, text", "0001:41:00.0"),
        ("NVRM: Xid (PCI:0000:0a:00 GPU-I:05): 31, text", "0000:0a:00.0"),
        ("NVRM: Xid (PCI:0000:0a:00): 31", "0000:0a:00.0"),
    ],
)
def test_bus_ids_of_all_driver_generations_are_named_alike(line: str, bus: str) -> None:
    assert [(xid.code, xid.bus_id) for xid in parse([line])] == [(31, bus)]


@pytest.mark.parametrize(
    "line",
    ["NVRM: GPU at PCI:0000:c1:00: GPU-0", "say NVRM: Xid", "NVRM: Xid (PCI:zz): 79", "\0", ""],
)
def test_other_lines_are_no_xid(line: str) -> None:
    assert parse([line]) == ()


def test_reading_the_kernel_ring_never_waits_for_more(tmp_path: Path) -> None:
    """A pipe nobody writes to would block a reader for ever."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, f"4,0,5,-;{LOST}\n SUBSYSTEM=pci\n".encode())
        found = kernel_log._kernel_ring(path)
    finally:
        os.close(writer)
    assert found is not None
    assert not found.wrapped
    assert [xid.code for xid in parse(found.records)] == [79]


def test_a_ring_that_lost_its_beginning_is_not_taken_for_the_whole_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kmsg"
    path.write_text(f"4,17,5,-;{RESET}\n")
    monkeypatch.setattr(kernel_log, "_KMSG_FILE", path)
    ring = kernel_log._kernel_ring(path)
    monkeypatch.setattr(kernel_log, "_kernel_ring", lambda: ring)
    monkeypatch.setattr(kernel_log, "_journal", lambda: [LOST, RESET])
    assert [xid.code for xid in kernel_log.read() or ()] == [79, 154]
    monkeypatch.setattr(kernel_log, "_journal", lambda: None)
    assert [xid.code for xid in kernel_log.read() or ()] == [154]


def test_a_log_that_may_not_be_read_is_not_a_log_without_xids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_log, "_kernel_ring", lambda: None)
    monkeypatch.setattr(kernel_log, "_journal", lambda: None)
    assert kernel_log.read() is None


def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "journalctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_the_journal_is_asked_for_this_boot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalctl(
        tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/asked; echo "[ 5.5] h kernel: {LOST}"'
    )
    assert [xid.time for xid in parse(kernel_log._journal() or [])] == [5.5]
    assert {"--boot", "--dmesg"} <= set((tmp_path / "asked").read_text().split())


def test_a_journal_without_matches_says_none_and_a_missing_one_says_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalctl(tmp_path, monkeypatch, "echo '-- No entries --'; exit 1")
    assert kernel_log._journal() == []
    journalctl(tmp_path, monkeypatch, "echo 'No journal files were found.' >&2; exit 1")
    assert kernel_log._journal() is None


def test_a_journal_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journalctl(tmp_path, monkeypatch, "exec sleep 600")
    monkeypatch.setattr(kernel_log, "_JOURNAL_SECONDS", 0.2)
    assert kernel_log._journal() is None
