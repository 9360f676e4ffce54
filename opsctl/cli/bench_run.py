"""What `opsctl bench run` puts together: configuration, folder, engines or a URL, interruption."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from opsctl.bench import engines, environment
from opsctl.bench.engines import Means
from opsctl.bench.folder import Folder, described
from opsctl.bench.grid import distinct
from opsctl.bench.progress import Shown
from opsctl.bench.results import Profile, Result
from opsctl.bench.run import OpenTarget, Order, Run, by_profile, by_url
from opsctl.cli.loading import load_config
from opsctl.cli.output import message
from opsctl.config.schema import Config
from opsctl.errors import UsageError
from opsctl.observe.events import Journal
from opsctl.serve.fitness import refuse_unfit
from opsctl.serve.keeper import memory_reader
from opsctl.serve.places import Places
from opsctl.system import descriptors
from opsctl.system.cgroup import writable_parent
from opsctl.system.lock import lock

_ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Wanted:
    """What the command line says about where to measure and where to keep it."""

    profiles: list[str]
    url: str | None
    api_key_env: str | None
    out: str | None
    config: str | None

    def names(self) -> tuple[str, ...]:
        """Names of what is measured; raises UsageError."""
        if self.url is None:
            if not self.profiles:
                raise UsageError("nothing to measure", hint="name a --profile, or a --url")
            return distinct(self.profiles)
        if len(self.profiles) > 1:
            raise UsageError("--url is one server; give at most one --profile, as its name")
        name = self.profiles[0] if self.profiles else re.sub(r"\W+", "-", self.url.split("//")[-1])
        return (name.strip("-"),)

    def api_key(self, variables: Mapping[str, str]) -> str | None:
        """The key for the server; raises UsageError when the variable is not set."""
        if self.api_key_env is None:
            return None
        if not variables.get(self.api_key_env):
            raise UsageError(f"--api-key-env: the variable {self.api_key_env} is not set")
        return variables[self.api_key_env]

    def folder(self) -> Path:
        """The result directory."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        return Path(self.out or f"bench-{stamp}").expanduser().absolute()


def execute(wanted: Wanted, order: Order) -> tuple[Result, Path]:
    """Measure; raises KeyboardInterrupt when interrupted, after the engine has been stopped."""
    folder = wanted.folder()
    config = load_config(wanted.config).config if wanted.url is None else Config()
    unknown = [name for name in order.grid.profiles if name not in config.profiles]
    if wanted.url is None and unknown:
        known = ", ".join(config.profiles)
        raise UsageError(f"no profile {unknown[0]!r}", hint=f"configured profiles: {known}")
    key = wanted.api_key(os.environ)
    _make(folder)
    descriptors.raise_limit()
    with lock(folder / ".lock", what=str(folder)), Shown(message) as show:
        work = _work(wanted, order, config, key, folder, show)
        return uvloop.run(_until_interrupted(work, show)), folder


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}") from error


async def _work(
    wanted: Wanted, order: Order, config: Config, key: str | None, folder: Path, show: Shown
) -> Result:
    open_target: OpenTarget
    if wanted.url is not None:
        profiles = [Profile(name=name, fingerprint="", speculative=False)
                    for name in order.grid.profiles]  # fmt: skip
        open_target = by_url(wanted.url, key)
    else:
        means = _means(config, folder)
        profiles = [environment.configured(x, config.profiles[x]) for x in order.grid.profiles]
        if (pid := await engines.end_leftover(means)) is not None:
            show.say(f"ended the engine of a run that was killed here (pid {pid})")
        await engines.check_all(means, order.grid.profiles)
        open_target = by_profile(means, show)
    kept = Folder.open(
        folder,
        environment=await environment.host(),
        workload=order.workload,
        salted=order.salted,
        profiles=profiles,
        grid=described(order.grid, order.way, order.workload),
    )
    return await Run(order, kept, open_target, show).run()


def _means(config: Config, folder: Path) -> Means:
    journal = Journal(folder / "events.jsonl")
    return Means(
        config=config,
        folder=folder,
        environment=os.environ,
        fit=lambda name: refuse_unfit(config, name, journal.record),
        memory=lambda profile: memory_reader(profile, config.serve, Places(folder), journal.record),
        cgroup_parent=writable_parent(),
    )


async def _until_interrupted(work: Coroutine[Any, Any, Result], show: Shown) -> Result:
    """Ctrl-C and SIGTERM stop the measurement once; what follows, the engine's stop, is waited for.

    A second one must not leave an engine behind that holds eight GPUs.
    """
    task = asyncio.ensure_future(work)
    told = False

    def interrupt(name: str) -> None:
        nonlocal told
        if not told:
            show.say(f"{name}: stopping; what has been measured is kept")
            task.cancel()
        else:
            show.say(f"{name}: the engine is being stopped, please wait")
        told = True

    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, partial(interrupt, signal.Signals(number).name))
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
