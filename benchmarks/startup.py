"""How long `opsctl --version` takes beside `python -c pass`: what a person feels on every call.

Pairs are run alternately, so that a busy moment of the machine hits both. The target is a median
ratio of 4 at most.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PAIRS = 15
TARGET = 4.0


def seconds(argv: Sequence[str]) -> float:
    """Return the wall time of one run of `argv`, which must succeed."""
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> int:
    """Print both medians, their ratio with its spread, and whether the target is met."""
    python = sys.executable
    opsctl = [str(Path(python).with_name("opsctl")), "--version"]
    nothing = [python, "-c", "pass"]
    seconds(opsctl)  # the first run compiles bytecode
    pairs = [(seconds(nothing), seconds(opsctl)) for _ in range(PAIRS)]
    ratios = sorted(ours / theirs for theirs, ours in pairs)
    median = statistics.median(ratios)
    print(f"python -c pass    median {statistics.median(p[0] for p in pairs) * 1000:6.1f} ms")
    print(f"opsctl --version  median {statistics.median(p[1] for p in pairs) * 1000:6.1f} ms")
    print(f"ratio             median {median:.2f}  (from {ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"target            {TARGET:.0f}x or less: {'met' if median <= TARGET else 'MISSED'}")
    return 0 if median <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
