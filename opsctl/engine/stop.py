"""The one verified way to end an engine: stop ladder, then an observed release."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.engine.process import StopReport
from opsctl.engine.release import Release, verify
from opsctl.engine.start import RunningEngine


@dataclass(frozen=True)
class Stopped:
    """How an engine ended and whether everything it held was seen free."""

    report: StopReport
    release: Release


async def stop(engine: RunningEngine, *, force: bool = False) -> Stopped:
    """End `engine` and watch its processes, port, shared memory and GPU memory go.

    `force` skips SIGTERM: for an engine that hangs or has already lost a part of its tree.
    Returns also when something is left; the caller must look at `release.ok`.
    """
    limits = engine.profile.timeouts
    report = await engine.process.stop(grace=limits.stop, force=force)
    await engine.client.close()
    release = await verify(
        engine.process.identity,
        ports=(engine.port,) if engine.owns_port else (),
        memory=engine.memory,
        deadline=limits.release,
        segments=report.segments,
    )
    return Stopped(report, release)
