"""The owner loop: the only code that changes serving state.

Signals, the control socket, the engine's tasks and the watchdog post events; this loop takes one
at a time, steps the pure state machine and carries out its effects. Nothing else opens the gate,
starts or stops an engine, or writes the state file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.autospec.guards import Situation
from opsctl.autospec.policy import Decision
from opsctl.config.schema import Config
from opsctl.engine import preflight
from opsctl.engine.start import RunningEngine
from opsctl.errors import GaveUpError, PreconditionError, ReleaseError
from opsctl.observe.events import Journal
from opsctl.serve import effects as do
from opsctl.serve import lifecycle, remembered
from opsctl.serve.adapting import Adapting
from opsctl.serve.announce import Announcer
from opsctl.serve.automation import Automation, Judgement
from opsctl.serve.configured import engine_notes, rules
from opsctl.serve.fitness import refuse_unfit
from opsctl.serve.gateway import Gateway
from opsctl.serve.inputs import (
    Adopted,
    EngineLost,
    Event,
    Idle,
    StandbyFailed,
    StartFailed,
    SwitchAsked,
    Tick,
)
from opsctl.serve.keeper import Keeper
from opsctl.serve.notify import Notifier
from opsctl.serve.places import Places
from opsctl.serve.state import Phase, Rules, State
from opsctl.serve.turns import Turns
from opsctl.serve.watch import EngineWatch, Look, gateway_sample
from opsctl.system.cgroup import Cgroup
from opsctl.system.procfs import boot_id

TICK = 0.2
SAMPLE = 1.0


@dataclass(frozen=True)
class LastFailure:
    """The failure seen last, and when (monotonic seconds)."""

    time: float
    profile: str
    kind: str
    why: str


class Supervisor:
    """One serving instance: gateway in front, one engine behind, one loop that owns both."""

    def __init__(
        self,
        config: Config,
        places: Places,
        *,
        journal: Journal,
        gateway: Gateway,
        automation: Automation,
        state: State,
        cgroup_parent: Cgroup | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._started_with = config.serve
        self.places = places
        self.state = state
        self.gateway = gateway
        self.automation = automation
        self.look: Look | None = None
        self.clock = clock
        self.record = journal.record
        self.announcer = Announcer(Notifier(os.environ), clock)
        self.turns = Turns(os.environ, journal.record)
        self.keeper = Keeper(
            places,
            post=self.post,
            record=journal.record,
            spawned=self._save,
            cgroup_parent=cgroup_parent,
        )
        self.adapting = Adapting(journal.record)
        self.keeper.extra_flags = self.adapting.flags_for
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._watch: EngineWatch | None = None
        self._idle: asyncio.Task[None] | None = None
        self.last_failure: LastFailure | None = None
        self._told_unfit = ("", "")

    def post(self, event: Event) -> None:
        """Hand an event to the owner loop; safe from any task or signal handler of the loop."""
        self._events.put_nowait(event)

    async def run(self) -> None:
        """Own serving until it ends; raises GaveUpError or ReleaseError when it had to end."""
        helpers = [asyncio.ensure_future(self._tick()), asyncio.ensure_future(self._sample())]
        try:
            while self.state.exit_code is None:
                event = await self._events.get()
                self.handle(event)
                if isinstance(event, Tick):
                    self.announcer.turned(self.state)
                    self._announce()  # a stage of the load changes no state
        finally:
            for task in (*helpers, *([self._idle] if self._idle else [])):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await self.keeper.close()
        self._raise_if_failed()

    def handle(self, event: Event) -> None:
        """Step the state machine with one event and carry out what follows."""
        before = self.state
        admitted = self.turns.admit(event, before)
        if admitted is None:
            self._announce()
            return
        event = admitted
        self.state, wanted = lifecycle.step(before, event, self.clock(), self.rules())
        if isinstance(event, StartFailed | EngineLost):
            self.last_failure = LastFailure(self.clock(), before.profile, event.kind, event.why)
        if isinstance(event, StartFailed | StandbyFailed):
            self.adapting.start_failed(event.kind)
        for effect in wanted:
            self._perform(effect)
        self.turns.settle(self.state)
        if self.state != before:
            self._save()
            self._announce()

    def rules(self) -> Rules:
        """The rules of the configuration as it is now."""
        prepared = self.automation.prepared
        return rules(self.config, None if prepared is None else prepared.choice.mechanism)

    def pause(self, paused: bool) -> None:
        """Turn automatic switching off or on; serving is not touched."""
        if self.automation.paused != paused:
            self.automation.paused = paused
            self.record("paused" if paused else "resumed")
            self._save()

    def adopt(self, engine: RunningEngine) -> None:
        """Serve from an engine that an earlier opsctl started."""
        self.keeper.adopt(engine, self.state.generation + 1)
        self.handle(Adopted(engine.name))

    def reconfigure(self, config: Config) -> list[str]:
        """Take over a new configuration; returns what it does not change until a restart."""
        self.config = config
        self.automation.configure(config.auto_spec)
        self.adapting.forget()
        notes = []
        for key in ("listen", "gateway"):
            if getattr(self._started_with, key) != getattr(config.serve, key):
                notes.append(f"serve.{key} takes effect when opsctl serve is started again")
        engine = self.keeper.engine
        if engine is not None:
            notes.extend(engine_notes(engine, config))
        return notes

    def situation(self) -> Situation:
        """What the guards look at."""
        return Situation(
            serving=self.state.phase is Phase.SERVING,
            ready_at=self.state.ready_at,
            switch_times=self.state.switch_times,
            quarantine=self.state.failures.quarantine,
            paused=self.automation.paused,
            cancelled_at=self.state.cancelled_at,
            cancellations=self.state.cancellations,
        )

    def _perform(self, effect: do.Effect) -> None:
        match effect:
            case do.Record():
                self.record(effect.event, **effect.facts)
                self.automation.note(effect.event, effect.facts)
            case do.Start():
                self.keeper.start(self.config, effect.profile, effect.generation)
            case do.StopEngine():
                self._end_watch()
                self.keeper.stop(effect.generation, force=effect.force)
            case do.Prepare():
                self.keeper.prepare(self.config, effect.profile, effect.standby)
            case do.Activate():
                self.keeper.activate(effect.generation, effect.standby)
            case do.DropStandby():
                self.keeper.drop(effect.standby)
            case do.OpenGate():
                self._open_gate()
            case do.CloseGate():
                self.gateway.close(effect.reason, admit=effect.admit)
            case do.AwaitIdle():
                self._idle = asyncio.ensure_future(self._await_idle(effect.generation))
            case do.Cut():
                self.gateway.cut(effect.reason)
            case do.Exit():
                pass  # the loop ends by the exit code in the state

    def _open_gate(self) -> None:
        engine = self.keeper.engine
        if engine is None:  # the effect only ever follows a start or an adoption
            raise RuntimeError("the gate was to open without an engine")
        if engine.missing_markers:
            self.record("degraded", missing_markers=list(engine.missing_markers))
        if self._watch is None:
            self.adapting.follow(engine)
            health, counters = self.config.serve.health, lambda: self.gateway.counters
            self._watch = EngineWatch(engine, health, counters, self.clock, self.adapting)
        self.gateway.open(engine.url)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self.look = None

    async def _await_idle(self, generation: int) -> None:
        await self.gateway.idle()
        self.post(Idle(generation))

    async def _tick(self) -> None:
        while True:
            self.post(Tick())
            await asyncio.sleep(TICK)

    async def _sample(self) -> None:
        """Look at the engine once a second and let the watchdog decide."""
        while True:
            await asyncio.sleep(SAMPLE)
            try:
                await self._look_and_judge()
            except Exception:  # a fault of opsctl itself must not blind the watchdog for good
                self.record("internal_error", where="watch", traceback=traceback.format_exc())

    async def _look_and_judge(self) -> None:
        watch, generation = self._watch, self.state.generation
        if watch is None:  # requests wait, and the policy is to know how many
            sample = gateway_sample(self.clock(), self.gateway.counters)
            self.automation.take(sample, None, self.situation())
            return
        look = await watch.look()
        if watch is self._watch:
            await self._judge(look, generation)

    async def _judge(self, look: Look, generation: int) -> None:
        self.look = look
        serving = self.state.profile if self.state.gate_open else None
        judgement = self.automation.take(
            self.adapting.for_policy(look.sample), serving, self.situation(), ask=look.lost is None
        )
        if look.lost is not None:
            self.post(EngineLost(generation, *look.lost))
            return
        if self.turns.waiting is not None:
            self._still_wanted(judgement)
        elif judgement is not None and judgement.acts:
            await self._switch_by_policy(judgement.decision)

    def _still_wanted(self, judgement: Judgement | None) -> None:
        """The policy's switch that waits for its turn is given up when the load has changed."""
        waiting = self.turns.waiting
        if waiting is None or waiting.by != "policy":
            return
        wanted = None
        if judgement is not None and judgement.acts:
            wanted = judgement.decision.profile
        if wanted != waiting.profile:
            self.turns.withdraw("policy")

    async def _switch_by_policy(self, decision: Decision) -> None:
        try:
            await self.check_target(decision.profile)
        except PreconditionError as error:
            if self._told_unfit != (decision.profile, error.message):
                self._told_unfit = (decision.profile, error.message)
                self.record("switch_refused", profile=decision.profile, by="policy", why=str(error))
            return
        self._told_unfit = ("", "")
        self.post(SwitchAsked(decision.profile, "policy", decision.reason, urgent=decision.urgent))

    async def check_target(self, name: str) -> None:
        """Raise PreconditionError when `name` could not start; nothing was given up for it yet."""
        log_dir = self.places.engine_log.parent
        await preflight.check_files(self.config.profiles[name], log_dir=log_dir)
        await refuse_unfit(self.config, name, self.record)

    def _save(self) -> None:
        """Write the state file; a full disk is told in the journal, serving goes on."""
        engine = self.keeper.engine
        record = None
        if engine is not None:
            record = {
                "identity": engine.process.identity.to_json(),
                "profile": engine.name,
                "fingerprint": engine.fingerprint,
                "port": engine.port,
                "ready": self.state.phase
                in {Phase.SERVING, Phase.PREPARING, Phase.DRAINING, Phase.DRAINED},
                "log": str(engine.log.path),
                "extra_flags": dict(engine.extra_flags),
            }
        snapshot = remembered.Snapshot(
            self.state,
            boot_id(),
            os.getpid(),
            self.automation.paused,
            record,
            self.automation.book.costs,
        )
        try:
            remembered.save(self.places.state, snapshot)
        except OSError as error:
            self.record("state_not_saved", why=str(error))

    def _raise_if_failed(self) -> None:
        if self.state.exit_code == lifecycle.GAVE_UP:
            raise GaveUpError(
                f"{self.state.reason}; the last one: "
                f"{self.last_failure.why if self.last_failure else 'before this start'}",
                hint=f"read {self.places.engine_log} and `opsctl events`, then serve again",
            )
        if self.state.exit_code == lifecycle.NOT_RELEASED:
            raise ReleaseError(
                self.state.reason,
                hint="end what is named; if it cannot be ended, reset the GPU or reboot",
            )

    def _announce(self) -> None:
        self.announcer.tell(self.state, self.keeper.stage, self.turns.reason)
