"""Brings the watchdog's policy up: at the start with its memory, and again after a reload.

Surfaces, the installed SGLang, NVML and the load journal are read beside the event loop and with
time limits: without them opsctl serves on, and says what is missing.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from opsctl.autospec.built import build, first_profile
from opsctl.bench.environment import host
from opsctl.serve import policies, restore
from opsctl.serve.automation import Prepared
from opsctl.serve.load_journal import LoadJournal, NoJournal
from opsctl.serve.supervisor import Supervisor
from opsctl.system.threads import aside

LIMIT = 15.0
"""Seconds for surfaces and the files of SGLang, on a disk that is busy with others."""


class Watchdog:
    """Prepares policies for the automation of one supervisor."""

    def __init__(
        self,
        supervisor: Supervisor,
        journal: LoadJournal | NoJournal,
        record: Callable[..., None],
    ) -> None:
        self._supervisor = supervisor
        self._automation = supervisor.automation
        self._journal = journal
        self._record = record
        self._environment: Mapping[str, Any] | None = None
        self._told = ""
        self._task: asyncio.Task[None] | None = None

    async def begin(self, free: bool) -> None:
        """Bring the policy up; it says which profile to start when nobody else has (`free`).

        Its memory comes back while the engine loads; until then nothing is decided.
        """
        if not self._automation.enabled:
            return
        self._environment = await _environment()
        prepared = await self._prepare()
        self._automation.expect(prepared)
        if free:
            self._start_with(first_profile(prepared.plan))
        self._supervisor.adapting.changed = self.renew
        self._task = asyncio.ensure_future(self._take(prepared))

    def renew(self) -> None:
        """Take over what has changed, as soon as it has been read: configuration, surfaces."""
        if self._automation.enabled:
            if self._task is not None:
                self._task.cancel()
            self._task = asyncio.ensure_future(self._renew())

    async def close(self) -> None:
        """Stop, and let the load journal write its last lines."""
        if self._task is not None:
            self._task.cancel()
        await self._journal.close()

    async def _renew(self) -> None:
        await self._take(await self._prepare())

    async def _take(self, prepared: Prepared) -> None:
        """Let the policy go on, or build the new one and tell it the past."""
        automation = self._automation
        if not automation.goes_on(prepared):
            setup = automation.set_up(prepared, automation.why)
            await self._journal.flush()
            past = await restore.past(self._supervisor.places.load)
            try:
                policy, restored = await restore.reminded(setup, past)
            except Exception:  # a history may trip a policy; it must not keep it from deciding
                self._record("internal_error", where="restore", traceback=traceback.format_exc())
                policy, restored = build(setup.plan), 0
            automation.resume(prepared, setup.told(restored), policy)
        self._tell()

    async def _prepare(self) -> Prepared:
        supervisor = self._supervisor
        config, costs = supervisor.config, dict(self._automation.book.costs)
        work = partial(
            policies.prepare,
            config,
            supervisor.places.root,
            costs,
            environment=self._environment,
            observed=supervisor.adapting.observed,
        )
        try:
            prepared = await asyncio.wait_for(aside(work, key="policies"), LIMIT)
        except TimeoutError:
            why = f"surfaces and the files of SGLang could not be read within {LIMIT:g} s"
            prepared = policies.without_surfaces(config, costs, why)
        except Exception:  # a fault of opsctl itself must not keep it from serving
            self._record("internal_error", where="policies", traceback=traceback.format_exc())
            why = "surfaces could not be read (internal_error in `opsctl events`)"
            prepared = policies.without_surfaces(config, costs, why)
        supervisor.adapting.planned = prepared.in_engine
        return prepared

    def _tell(self) -> None:
        """Say once that there is no surface, and which command makes one."""
        blind = self._automation.blind
        if blind and blind != self._told:
            self._record("no_surface", why=blind, hint=self._automation.to_measure)
        self._told = blind

    def _start_with(self, profile: str | None) -> None:
        config = self._supervisor.config
        if profile is not None and profile in config.profiles:
            serve = config.serve.model_copy(update={"profile": profile})
            self._supervisor.config = config.model_copy(update={"serve": serve})


async def _environment() -> Mapping[str, Any] | None:
    """The host as `bench` records it; None when its driver does not say what it is."""
    found = await host()
    return found if found["driver"] is not None else None
