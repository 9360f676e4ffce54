"""The verifier's word decides, and the exit code says how many hosts it was good for."""

from __future__ import annotations

import pytest

from opsctl.provision.progress import HostResult
from opsctl.provision.report import HostReport, Report, Seen, Verdict, judge, seen

OK = Seen(verdict={"verdict": "ok", "why": []})


@pytest.mark.parametrize(
    ("result", "found", "check", "verified", "verdict"),
    [
        (HostResult(ok=3), OK, False, True, "ok"),
        (HostResult(ok=3), Seen(), False, True, "failed"),
        (
            HostResult(ok=3),
            Seen(verdict={"verdict": "failed", "why": ["x"]}),
            False,
            True,
            "failed",
        ),
        (HostResult(ok=3, failed=1), OK, False, True, "failed"),
        (HostResult(unreachable=True), OK, False, True, "failed"),
        (HostResult(ok=3), OK, False, False, "not verified"),
        (HostResult(ok=3), OK, True, True, "unchanged"),
        (HostResult(ok=3, changed=1), OK, True, True, "pending"),
        (HostResult(ok=3, unknown=["x"]), OK, True, True, "pending"),
    ],
)
def test_verdict(
    result: HostResult, found: Seen, check: bool, verified: bool, verdict: Verdict
) -> None:
    assert judge(result, found, check=check, verified=verified).verdict == verdict


def host(verdict: Verdict) -> HostReport:
    return HostReport(0, 0, 0, False, verdict)


@pytest.mark.parametrize(
    ("verdicts", "check", "code"),
    [
        (["ok", "ok"], False, 0),
        (["not verified"], False, 0),
        (["ok", "failed"], False, 5),
        (["failed", "failed"], False, 1),
        (["unchanged"], True, 0),
        (["unchanged", "pending"], True, 3),
        (["pending", "failed"], True, 5),
    ],
)
def test_exit_code(verdicts: list[Verdict], check: bool, code: int) -> None:
    hosts = {str(number): host(verdict) for number, verdict in enumerate(verdicts)}
    assert Report(hosts, "log", check=check).exit_code == code


def test_what_the_host_told_is_read_line_by_line() -> None:
    found = seen("reboot: nouveau is loaded\n\n BIOS: Above 4G\n", '{"verdict": "ok"}')
    assert found.pending == ("reboot: nouveau is loaded", "BIOS: Above 4G")
    assert found.verdict == {"verdict": "ok"}


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_verdict_that_cannot_be_read_is_none(text: str) -> None:
    assert seen("", text).verdict is None
