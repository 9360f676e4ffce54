"""One run of `opsctl serve`, from the lock to the exit code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import uvloop

from opsctl.config.schema import Config, LaunchProfile
from opsctl.config.secrets import resolve
from opsctl.engine.release import MemoryReader
from opsctl.errors import OpsctlError, UsageError
from opsctl.observe.events import Journal
from opsctl.serve import recovery, remembered
from opsctl.serve.automation import Automation
from opsctl.serve.control import Control
from opsctl.serve.fitness import refuse_unfit
from opsctl.serve.gateway import Gateway
from opsctl.serve.inputs import Begin, StopAsked
from opsctl.serve.keeper import memory_reader
from opsctl.serve.load_journal import LoadJournal, NoJournal
from opsctl.serve.places import Places
from opsctl.serve.state import State
from opsctl.serve.status import status
from opsctl.serve.supervisor import Supervisor
from opsctl.serve.watchdog import Watchdog
from opsctl.system import descriptors, subreaper
from opsctl.system.cgroup import writable_parent
from opsctl.system.lock import lock
from opsctl.system.procfs import boot_id
from opsctl.system.stderr import Stderr
from opsctl.system.threads import aside

_REAP_EVERY = 5.0
_ENDING = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Wishes:
    """What the command line adds to the configuration."""

    auto_spec: bool = False
    observe: bool = False
    profile: str | None = None
    listen: str | None = None


def apply(config: Config, wishes: Wishes) -> Config:
    """The configuration with the command line's wishes in it; raises UsageError."""
    serve, auto = config.serve, config.auto_spec
    if not config.profiles:
        raise UsageError(
            "the configuration has no profile to serve",
            hint="it only names those of instances: serve one of them with --config",
        )
    if wishes.profile is not None and wishes.profile not in config.profiles:
        known = ", ".join(config.profiles)
        raise UsageError(f"no profile {wishes.profile!r}", hint=f"configured profiles: {known}")
    if wishes.auto_spec and auto.policy != "always" and not (auto.speculative and auto.baseline):
        raise UsageError(
            "--auto-spec needs two profiles to switch between",
            hint="set auto_spec.speculative and auto_spec.baseline in the configuration",
        )
    serve = serve.model_copy(
        update={
            "listen": wishes.listen or serve.listen,
            "profile": wishes.profile
            or serve.profile
            or auto.baseline
            or next(iter(config.profiles)),
        }
    )
    if wishes.observe:
        auto = auto.model_copy(update={"observe": True})
    return config.model_copy(update={"serve": serve, "auto_spec": auto})


def run(load: Callable[[], Config], wishes: Wishes, places: Places) -> None:
    """Serve until told to stop. Raises the OpsctlError that kept it from starting or ended it."""
    written = load()
    config = apply(written, wishes)
    free = not (wishes.profile or written.serve.profile)
    places.create()
    descriptors.raise_limit()
    stderr = Stderr()
    with lock(places.lock, what=str(places.root)):
        try:
            uvloop.run(_Instance(config, load, wishes, places, stderr.say).run(free))
        finally:
            stderr.close()


class _Instance:
    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        wishes: Wishes,
        places: Places,
        say: Callable[[str], None],
    ) -> None:
        self._load = load
        self._wishes = wishes
        self._places = places
        self._journal = Journal(places.events, echo=say)
        past = remembered.read(places.state)
        self._past = past
        key = config.serve.gateway.api_key
        gateway = Gateway(
            config.serve.gateway,
            api_key=None if key is None else resolve(key, environment=os.environ),
            record=self._journal.record,
        )
        self._load_journal: LoadJournal | NoJournal = NoJournal()
        if wishes.auto_spec:
            self._load_journal = LoadJournal(places.load, failed=self._load_not_recorded)
        automation = Automation(
            config.auto_spec,
            enabled=wishes.auto_spec,
            record=self._journal.record,
            journal=self._load_journal,
        )
        automation.paused = past.paused if past is not None else False
        automation.book.costs = past.switch_costs() if past is not None else {}
        self._supervisor = Supervisor(
            config,
            places,
            journal=self._journal,
            gateway=gateway,
            automation=automation,
            state=past.restore(boot_id()) if past is not None else State(),
            cgroup_parent=writable_parent(),
        )
        self._watchdog = Watchdog(self._supervisor, self._load_journal, self._journal.record)
        gateway.metrics_source = self._engine_metrics
        gateway.status_source = lambda: status(self._supervisor)

    async def run(self, free: bool) -> None:
        """Serve to the end; raises the error that ended it, if one did.

        `free`: nobody has said which profile to start with, so the policy may.
        """
        supervisor, config = self._supervisor, self._supervisor.config
        control = Control(supervisor, self._reload)
        reaping = asyncio.ensure_future(_reap_orphans())
        if supervisor.state.drain_asked:
            supervisor.gateway.close("drained by the operator", admit=False)
        try:
            await supervisor.gateway.start(config.serve.listen)
            self._record_start()
            self._listen_to_signals()
            await control.start(self._places.socket)
            async with supervisor.announcer.patience("looking for an engine of an earlier opsctl"):
                await self._watchdog.begin(free)
                await self._begin()
            await supervisor.run()
        finally:
            reaping.cancel()
            await self._watchdog.close()
            await control.close()
            await supervisor.gateway.stop()
            _ignore_signals()

    def _record_start(self) -> None:
        self._journal.record(
            "opsctl_started",
            pid=os.getpid(),
            listen=self._supervisor.gateway.listens_on,
            auto_spec=self._wishes.auto_spec,
            profile=self._supervisor.config.serve.profile,
        )

    async def _begin(self) -> None:
        """Adopt the engine of an earlier opsctl, or start one."""
        supervisor, config = self._supervisor, self._supervisor.config
        past, wanted = self._past, self._wishes.profile
        record = past.engine if past is not None and past.boot_id == boot_id() else None
        try:
            found = await recovery.recover(record, config, self._places, wanted, self._guard)
        except OpsctlError as error:
            self._journal.record("recovery_failed", why=error.message)
            raise
        if found is not None:
            self._journal.record(
                "recovered",
                adopted=found.engine is not None,
                why=found.told,
                killed=list(found.killed),
            )
            if found.engine is not None:
                supervisor.adopt(found.engine)
                return
        await supervisor.check_target(config.serve.profile)
        await self._check_pair()
        guard = self._guard(config.profiles[config.serve.profile])
        try:
            await guard.before_start()
        finally:
            guard.close()
        self._places.simulated_gpu.unlink(missing_ok=True)
        supervisor.handle(Begin(config.serve.profile, explicit=wanted is not None))

    async def _check_pair(self) -> None:
        """With `--auto-spec`: a profile that cannot run is told now, not when load rises."""
        config = self._supervisor.config
        for name in (config.auto_spec.speculative, config.auto_spec.baseline):
            if self._wishes.auto_spec and name and name != config.serve.profile:
                await refuse_unfit(config, name, self._journal.record)

    def _guard(self, profile: LaunchProfile) -> MemoryReader:
        serve = self._supervisor.config.serve
        return memory_reader(profile, serve, self._places, self._journal.record)

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            # Not by the loop's own means: those put the default back when they are taken away,
            # and for a moment a signal would end the process (see `_ignore_signals`).
            signal.signal(number, partial(_post_stop, loop, self._supervisor))
        loop.add_signal_handler(signal.SIGHUP, self._reload_quietly)
        # A failing SGLang child sends SIGQUIT to its parent; when that has died first, opsctl has
        # adopted the child and is meant. (Not ignored: the engine would inherit that.)
        loop.add_signal_handler(signal.SIGQUIT, self._journal.record, "sigquit_survived")

    def _reload(self) -> list[str]:
        """Take over the configuration as it is on disk now; what needs a restart is told."""
        with self._supervisor.announcer.reloading():
            new = apply(self._load(), self._wishes)
            notes = self._supervisor.reconfigure(new)
        self._journal.record("reloaded", notes=notes)
        self._watchdog.renew()
        return notes

    def _reload_quietly(self) -> None:
        try:
            self._reload()
        except OpsctlError as error:
            self._journal.record("reload_refused", why=str(error))

    def _load_not_recorded(self, why: str) -> None:
        self._journal.record("load_not_recorded", why=why)

    async def _engine_metrics(self) -> str | None:
        engine = self._supervisor.keeper.engine
        return None if engine is None else await engine.client.metrics_text()


def _post_stop(
    loop: asyncio.AbstractEventLoop, supervisor: Supervisor, number: int, _frame: object
) -> None:
    asked = StopAsked(signal.Signals(number).name)
    loop.call_soon_threadsafe(supervisor.post, asked)


def _ignore_signals() -> None:
    """All is done: one more signal must not make another exit code of it.

    Python leaves ignored signals ignored when it ends; it would put the default back for others.
    """
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


async def _reap_orphans() -> None:
    """An engine's look reaps the members it knows; others would stay zombies while opsctl lives."""
    orphans = subreaper.OrphanReaper()
    while True:
        await asyncio.sleep(_REAP_EVERY)
        await aside(orphans.round)
