"""From the helper's lines to a snapshot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opsctl.gpu.model import Gpu, GpuUse, Snapshot
from opsctl.gpu.nvml_report import Report, pci_address

START = [{"ready": True}, {"driver": "580.95.05", "cuda": 13000}]


def report(*lines: dict[str, Any]) -> Report:
    made = Report()
    for line in lines:
        made.feed(json.dumps(line).encode())
    return made


def rows(kind: str, *content: list[Any], gpu: int = 0) -> dict[str, Any]:
    return {"gpu": gpu, "kind": kind, "rows": [[*row, 0, 0][:4] for row in content]}


def test_values_of_a_gpu_come_together_from_several_lines() -> None:
    made = report(
        *START,
        {"count": 1, "fault": None},
        {"gpu": 0, "name": "card", "compute_capability": [12, 0], "bus_id": "00000000:C1:00.0"},
        {"gpu": 0, "memory_used": 7},
        {"gpu": 0, "fault": None},
        {"end": True},
    )
    assert made.ended
    gpu = Gpu(0, name="card", compute_capability=(12, 0), bus_id="0000:c1:00.0", memory_used=7)
    assert made.snapshot() == Snapshot("ok", "", "580.95.05", "13.0", (gpu,))


@pytest.mark.parametrize(
    ("lines", "use"),
    [
        ([rows("compute", [9, 5])], GpuUse(0, 9, "compute", 5)),
        ([rows("compute", [9, None])], GpuUse(0, 9, "compute", None)),
        ([rows("compute", [9, 5]), rows("graphics", [9, 5])], GpuUse(0, 9, "compute", 5)),
        ([rows("compute", [9, 5]), rows("mps", [9, None])], GpuUse(0, 9, "mps", 5)),
        ([rows("compute", [9, 5, 1], [9, 6, 2])], GpuUse(0, 9, "compute", 11)),
        ([rows("compute", [9, 5, 1], [9, None, 2])], GpuUse(0, 9, "compute", None)),
        ([rows("graphics", [9, 0])], GpuUse(0, 9, "graphics", 0)),
    ],
)
def test_a_process_has_one_row_a_gpu(lines: list[dict[str, Any]], use: GpuUse) -> None:
    """C+G rows repeat the same memory; rows of MIG instances add up; N/A is not 0."""
    assert report(*START, {"count": 1, "fault": None}, *lines).snapshot().uses == (use,)


def test_no_gpu_is_absent_and_an_unknown_number_of_gpus_is_a_fault() -> None:
    assert report(*START, {"count": 0, "fault": None}).snapshot().state == "absent"
    failed = report(*START, {"count": None, "fault": "nvmlDeviceGetCount failed: Unknown Error"})
    assert failed.snapshot().state == "fault"
    assert failed.snapshot().why == "nvmlDeviceGetCount failed: Unknown Error"


@pytest.mark.parametrize(
    ("code", "state"), [(12, "absent"), (9, "absent"), (18, "fault"), (4, "fault"), (999, "fault")]
)
def test_a_failed_start_tells_no_driver_from_a_broken_one(code: int, state: str) -> None:
    made = report({"failed": {"code": code, "text": "words", "library": None}, "end": True})
    assert made.snapshot().state == state


def test_a_mismatch_names_both_versions_and_the_way_out() -> None:
    made = report({"failed": {"code": 18, "text": "", "library": "13.580.95.05"}, "end": True})
    why = made.snapshot(kernel_module="575.57.08").why
    assert "module is 575.57.08" in why
    assert "library is 13.580.95.05" in why
    assert "reboot" in why


def test_a_call_that_did_not_return_is_named_and_marks_its_gpu() -> None:
    made = report(
        *START,
        {"count": 4, "fault": None},
        {"gpu": 0, "name": "first"},
        {"gpu": 1, "name": "second"},
        {"call": "nvmlDeviceGetMemoryInfo_v2", "of": 1},
    )
    snapshot = made.unresponsive("why")
    assert snapshot.state == "unresponsive"
    assert snapshot.why == "why; not read: GPU 2, 3"
    assert [gpu.name for gpu in snapshot.gpus] == ["first", "second"]
    assert snapshot.gpus[0].fault is None
    fault = "the call nvmlDeviceGetMemoryInfo_v2 for GPU 1 did not return"
    assert snapshot.gpus[1].fault == fault


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b"\xff\xfe", b'{"call": "x"}', b"3"])
def test_what_the_helper_cannot_have_said_is_refused(line: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Report().feed(line)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("00010000:C1:1F.0", "10000:c1:1f.0"),
        ("0000:c1:00", "0000:c1:00.0"),
        ("c1:00.0", "0000:c1:00.0"),
        ("nonsense", "nonsense"),
    ],
)
def test_pci_addresses_are_written_as_the_kernel_writes_them(text: str, address: str) -> None:
    assert pci_address(text) == address
