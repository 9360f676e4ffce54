"""Signals that reach `opsctl serve` from below."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.server import wait_until
from tests.support.simulated import serving


def test_a_signal_too_many_does_not_change_the_exit_code(tmp_path: Path) -> None:
    with serving(tmp_path) as instance:
        instance.wait_serving()

        def ended() -> bool:
            for number in (signal.SIGTERM, signal.SIGINT):
                instance.process.send_signal(number)
            return instance.process.poll() is not None

        wait_until(ended, seconds=30, what="it has ended", every=0.001)
        assert instance.process.returncode == 0
        assert instance.leftovers() == []


def test_a_sigquit_from_an_adopted_child_does_not_end_serving(tmp_path: Path) -> None:
    """SGLang's children send it to their parent when they fail; see test_real_sglang_stop."""
    with serving(tmp_path) as instance:
        before = instance.wait_serving()
        instance.process.send_signal(signal.SIGQUIT)
        wait_until(
            lambda: any(event["event"] == "sigquit_survived" for event in instance.events()),
            seconds=10,
            what="the signal is in the journal",
            every=0.2,
        )
        after = instance.wait_serving()
        assert after["engine"]["pid"] == before["engine"]["pid"]
        assert instance.opsctl("stop").returncode == 0
        assert instance.process.wait(30) == 0
        assert instance.leftovers() == []
