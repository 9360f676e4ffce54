"""Entry point of `opsctl` and `python -m opsctl`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code; `--version` answers before heavy imports."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from opsctl import __version__

        sys.stdout.write(f"opsctl {__version__}\n")
        return
    from opsctl.cli.main import run

    if None in (sys.stdin, sys.stdout, sys.stderr):
        from opsctl.system.descriptors import ensure_standard_streams

        ensure_standard_streams()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
