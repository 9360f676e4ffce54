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
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self, free: bool) -> None:
        """Bring the policy up; it says which profile to start when nobody else has (`free`)."""
        if not self._automation.enabled:
            return
        self._environment = await _environment()
        prepared = await self._prepare()
        if prepared is None:
            return
        past = await restore.past(self._supervisor.places.load)
        setup = self._automation.set_up(prepared)
        policy, restored = await restore.reminded(setup, past)
        self._automation.resume(prepared, setup.told(restored), policy)
        self._tell()
        if free:
            self._start_with(self._automation.start)

    def renew(self) -> None:
        """Take over what a reload has changed, as soon as it has been read."""
        if self._automation.enabled:
            if self._renewing is not None:
                self._renewing.cancel()
            self._renewing = asyncio.ensure_future(self._renew())

    async def close(self) -> None:
        """Stop, and let the load journal write its last lines."""
        if self._renewing is not None:
            self._renewing.cancel()
        await self._journal.close()

    async def _renew(self) -> None:
        prepared = await self._prepare()
        if prepared is not None:
            self._automation.adopt(prepared)
            self._tell()

    async def _prepare(self) -> Prepared | None:
        supervisor = self._supervisor
        work = partial(
            policies.prepare,
            supervisor.config,
            supervisor.places.root,
            dict(self._automation.book.costs),
            self._environment,
        )
        try:
            return await asyncio.wait_for(aside(work, key="policies"), LIMIT)
        except TimeoutError:
            self._record("no_policy", why=f"surfaces could not be read within {LIMIT:g} s")
        except Exception:  # a fault of opsctl itself must not keep it from serving
            self._record("internal_error", where="policies", traceback=traceback.format_exc())
        return None

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
