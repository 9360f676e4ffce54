"""Entry point: `python -m opsctl.engine.simulated --model-path NAME ...`."""

from __future__ import annotations

import os
import signal
import sys
import time

import prometheus_client
import uvloop

from opsctl import __version__
from opsctl.engine.simulated import IMITATES, NAME, children, flags, loads
from opsctl.engine.simulated.lifecycle import Engine
from opsctl.engine.simulated.output import say


def main() -> int:
    """Run one engine and return its exit code, or die from the signal it should die from."""
    began = time.monotonic()
    options = flags.parse(sys.argv[1:])
    if {"ignore_sigterm", "stuck_stage"} & {fault.name for fault in options.faults}:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(f"{NAME} {__version__}: a simulated engine in the shape of SGLang {IMITATES}; "
        "no model is loaded and no GPU is used")  # fmt: skip
    if options.adaptive_off:
        say(
            f"speculative_adaptive disabled: {options.adaptive_off}. "
            "Falling back to static speculative params."
        )
    arguments = ", ".join(f"{key}={value!r}" for key, value in flags.shown(options).items())
    say(f"server_args=ServerArgs({arguments})")
    path = loads.create(options.port)
    family = children.start(options, path, began)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

    async def live() -> int:
        return await Engine(options, family, path, began).run()

    code = uvloop.run(live())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if code != -signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
