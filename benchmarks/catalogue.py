"""How long it takes to tell an SGLang's flags: from its files, and from what opsctl ships.

    python benchmarks/catalogue.py [SITE_PACKAGES]

Without an argument the sources of 0.5.23, the largest release so far, are fetched (once, outside
the checkout). Each run is a process of its own, in turns with `python -c pass`; files are in the
page cache. Times are of the CPU (user + system), which a busy moment of the machine changes less.
The target for an installation is half a second beyond starting Python.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 11
TARGET = 0.5
READ = (
    "from pathlib import Path; from opsctl.profiles.catalogue import installed;"
    "installed(Path({!r}))"
)
SHIPPED = "from opsctl.profiles.catalogue import shipped; shipped('0.5.23')"


def seconds(code: str) -> float:
    """Return the CPU time of a Python that runs `code`, which must succeed."""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"python -c {code!r} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def report(name: str, times: Sequence[float], bare: float) -> None:
    """Print one line: median, spread, and how many times a bare Python that is."""
    median = statistics.median(times)
    spread = f"{min(times) * 1000:.0f} to {max(times) * 1000:.0f}"
    print(f"{name:<22} median {median * 1000:6.0f} ms ({spread})  {median / bare:5.1f}x python")


def measure(site_packages: Path) -> float:
    """Print the figures; returns the median seconds that reading takes beyond a bare Python."""
    codes = {
        "python -c pass": "pass",
        "shipped('0.5.23')": SHIPPED,
        "installed(folder)": READ.format(str(site_packages)),
    }
    for code in codes.values():
        seconds(code)  # compiles bytecode, fills the page cache
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(ROUNDS):
        for name, code in codes.items():
            times[name].append(seconds(code))
    bare = statistics.median(times["python -c pass"])
    for name, measured in times.items():
        report(name, measured, bare)
    return statistics.median(times["installed(folder)"]) - bare


def main() -> int:
    """Measure and judge; without a wheel there is nothing to measure, and it says so."""
    sys.path.insert(0, str(ROOT))
    from tests.support.sglang_cpu.environment import UnavailableError  # noqa: PLC0415
    from tests.support.sglang_wheels import sources  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="opsctl-catalogue-") as folder:
        if len(sys.argv) > 1:
            site_packages = Path(sys.argv[1])
        else:
            try:
                site_packages = sources("0.5.23", Path(folder))
            except UnavailableError as error:
                print(f"not measured: {error}")
                return 0
        taken = measure(site_packages)
    verdict = "met" if taken <= TARGET else "MISSED"
    print(f"target                 {TARGET * 1000:.0f} ms or less beyond python: {verdict}")
    return 0 if taken <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
