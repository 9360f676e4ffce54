"""The watchdog beside both fixed profiles: latency of the same requests, on real processes.

    python benchmarks/auto_spec.py [SCENE]

Engines are simulated, opsctl and HTTP are not. Each scene takes one to three minutes, and its three
instances run at the same time. R1 (no more than 5 % and the price of one switch above the better
profile) is a promise about hours, which docs/auto-spec-results.md keeps account of; what it allows
is shown, but no target here. Lost or incomplete answers are a failure.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Play the scenes, or the one that is named; 1 when an answer was lost."""
    sys.path.insert(0, str(ROOT))
    from tests.support.auto_spec import SCENES, play  # noqa: PLC0415

    lost = 0
    for name in sys.argv[1:] or SCENES:
        with tempfile.TemporaryDirectory(prefix="opsctl-auto-spec-") as folder:
            played = asyncio.run(play(Path(folder), SCENES[name]))
        missing = sum(len(row.lost) for row in played.rows.values())
        lost += missing
        print(f"{name}\n{played.table}; {missing} lost\n", flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
