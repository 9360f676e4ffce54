"""Asks the lint whether a profile would break on this host's GPUs, before anything is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from opsctl.config.schema import Config
from opsctl.errors import PreconditionError
from opsctl.gpu import nvml
from opsctl.patching.preflight import of_profile
from opsctl.profiles.lint_gate import lint_refusal
from opsctl.profiles.lint_gather import Gpus
from opsctl.system.threads import aside

LIMIT = 15.0
"""Seconds for the files of SGLang and of the checkpoints, on a disk that is busy with others."""
DEADLINE = 2.0
"""Seconds without an answer of NVML; a driver that does not answer is the guard's to report."""


async def refuse_unfit(config: Config, name: str, record: Callable[..., None]) -> None:
    """Raise PreconditionError when the lint has errors that the configuration does not allow."""
    if config.profiles[name].engine == "simulated":
        return
    gpus = await _gpus()
    loop = asyncio.get_running_loop()

    def tell(event: str, **facts: object) -> None:  # the journal belongs to the loop
        loop.call_soon_threadsafe(partial(record, event, **facts))

    def look() -> None:
        patches = of_profile(config.profiles[name])
        lint_refusal(config, name, gpus=gpus, patches=patches, record=tell)

    check = aside(look, key=("lint", name))
    try:
        await asyncio.wait_for(check, LIMIT)
    except TimeoutError:
        raise PreconditionError(
            f"profile {name!r}: its files could not be linted within {LIMIT:g} s",
            hint="see whether the file system of the model or of the interpreter hangs",
        ) from None


async def _gpus() -> Gpus:
    snapshot = await nvml.read_async(deadline=DEADLINE)
    if snapshot.state != "ok" or not snapshot.gpus:
        return Gpus()
    known = [gpu.compute_capability for gpu in snapshot.gpus if gpu.compute_capability]
    return Gpus(min(known, default=None), len(snapshot.gpus))
