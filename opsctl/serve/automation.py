"""The watchdog: asks the policy, applies the guards, remembers the last decision."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from opsctl.autospec.built import Blind, build, learn, tell
from opsctl.autospec.cost import Costs
from opsctl.autospec.guards import GuardRules, Situation, Veto, vetoes
from opsctl.autospec.history import Decided, Seen, SetUp, Why
from opsctl.autospec.load import LoadSample
from opsctl.autospec.mechanism import Choice
from opsctl.autospec.plan import Guarding, Plan, PlannedCosts
from opsctl.autospec.policy import Decision, Policy
from opsctl.autospec.windows import Local, Ruling, Window, ruling
from opsctl.config.auto_spec import AutoSpecConfig
from opsctl.serve.in_engine import InEngine
from opsctl.serve.load_journal import LoadJournal, NoJournal
from opsctl.serve.switch_book import SwitchBook
from opsctl.system.procfs import boot_id


@dataclass(frozen=True)
class Judgement:
    """A decision and what stands against acting on it."""

    time: float
    decision: Decision
    vetoes: tuple[Veto, ...]

    @property
    def acts(self) -> bool:
        """Whether a switch follows from it."""
        return self.decision.action == "switch" and not self.vetoes

    def is_news(self, old: Judgement | None) -> bool:
        """Whether it says something else than `old`; seconds count down in the vetoes."""
        return old is None or (
            self.decision.action,
            self.decision.profile,
            len(self.vetoes),
        ) != (old.decision.action, old.decision.profile, len(old.vetoes))


@dataclass(frozen=True)
class Clocks:
    """Monotonic seconds, UNIX time, and what a clock on the wall shows at a UNIX time."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    local: Local = datetime.fromtimestamp

    def both(self) -> tuple[float, float]:
        """Return monotonic seconds and UNIX time."""
        return self.monotonic(), self.wall()


@dataclass(frozen=True)
class Prepared:
    """What a policy is built from, and the mechanism that switches (with why no cheaper one)."""

    plan: Plan
    choice: Choice
    in_engine: InEngine | None = None
    """What engines of the speculative profile are started with, where one of them is enough."""


class Automation:
    """Decides once a second whether another profile should serve. `enabled` is `--auto-spec`."""

    def __init__(
        self,
        config: AutoSpecConfig,
        *,
        enabled: bool,
        record: Callable[..., None],
        journal: LoadJournal | NoJournal | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self.enabled = enabled
        self.paused = False
        self.last: Judgement | None = None
        self.prepared: Prepared | None = None
        self.journal = journal or NoJournal()
        self._clocks = clocks or Clocks()
        self.book = SwitchBook(self.journal, self._clocks.both, self._learn)
        self._policy: Policy | None = None
        self._own: Judgement | None = None
        """The policy's own last decision, which a maintenance window may overrule."""
        self._record = record
        self.configure(config)

    def configure(self, config: AutoSpecConfig) -> None:
        """Take over new guards; a new policy comes with `adopt`."""
        self.rules = GuardRules(
            config.dwell, config.switches_per_hour, config.observe, config.cooldown
        )
        self._windows = tuple(Window.of(written) for written in config.maintenance)

    @property
    def plan(self) -> Plan | None:
        """What the policy was built from, or will be."""
        return None if self.prepared is None else self.prepared.plan

    @property
    def blind(self) -> str:
        """Why the policy cannot decide; empty when it can."""
        return self._policy.why if isinstance(self._policy, Blind) else ""

    @property
    def to_measure(self) -> str:
        """The commands that would give a blind policy its surfaces."""
        return self._policy.change if isinstance(self._policy, Blind) else ""

    def set_up(self, prepared: Prepared, why: Why = "start") -> SetUp:
        """Return the journal's record of a policy that is built now."""
        plan = prepared.plan.model_copy(update={"guards": self._guarding()})
        return SetUp(*self._clocks.both(), boot_id(), why, plan)

    def expect(self, prepared: Prepared) -> None:
        """Know the mechanism before the policy is there: engines are started by it."""
        self._take_over(self.set_up(prepared), prepared)

    def adopt(self, prepared: Prepared) -> None:
        """Take over a policy; a new one knows nothing of the past."""
        if not self.goes_on(prepared):
            setup = self.set_up(prepared, self.why)
            self.resume(prepared, setup, build(setup.plan))

    def goes_on(self, prepared: Prepared) -> bool:
        """Take over a set-up that makes the same policy, which keeps all that it has learnt.

        False when it makes another one.
        """
        setup, before = self.set_up(prepared, "again"), self.plan
        if self._policy is None or before is None or not setup.plan.same_policy(before):
            return False
        self._take_over(setup, prepared)
        self.journal.note(setup)
        return True

    @property
    def why(self) -> Why:
        """Why the next policy is built, as the load journal tells it."""
        return "start" if self._policy is None else "changed"

    def resume(self, prepared: Prepared, setup: SetUp, policy: Policy) -> None:
        """Take over a policy that has been told the past, as `setup` says."""
        self._take_over(setup, prepared)
        self._policy, self._own, self.last = policy, None, None
        self.journal.note(setup)

    def take(
        self, sample: LoadSample, serving: str | None, situation: Situation, *, ask: bool = True
    ) -> Judgement | None:
        """Tell the policy a sample and return what should be done while `serving` serves.

        None when there is nothing to decide: without `--auto-spec`, while requests wait, or with
        `ask` false, because the engine is lost.
        """
        plan, policy = self.plan, self._policy
        if not self.enabled or plan is None or policy is None:
            return None
        asked = ask and serving is not None and situation.serving
        seen = Seen(sample, serving, self._clocks.wall(), asked)
        self.journal.note(seen)
        own = self._ask(policy, plan, seen)
        if serving is None or not asked:
            return None
        judgement = self._judge(serving, own, situation, sample.time)
        if judgement.is_news(self.last):
            self._tell(judgement)
        if own is not None:
            self._keep(replace(judgement, decision=own))
        self.last = judgement
        return judgement

    def against(self, target: str, situation: Situation, now: float) -> tuple[Veto, ...]:
        """Everything that forbids an automatic switch to `target` now."""
        found = vetoes(self.rules, situation, target, now)
        rules = self._ruling()
        if rules.why_not:
            left = None if rules.until is None else rules.until - self._clocks.wall()
            found += (Veto(rules.why_not, None if left is None else now + left),)
        elif rules.forced and rules.forced != target:
            found += (Veto(f"maintenance {rules.window}: {rules.forced} is to serve"),)
        return found

    def note(self, event: str, facts: Mapping[str, object]) -> None:
        """Take an event of the journal: switches are part of a policy's history."""
        if self.enabled:
            self.book.note(event, facts)

    def _ask(self, policy: Policy, plan: Plan, seen: Seen) -> Decision | None:
        """A fault in a policy must not take the watchdog, and so serving, with it."""
        try:
            return tell(policy, plan, seen)
        except Exception:
            self._record("internal_error", where="policy", traceback=traceback.format_exc())
            self._policy = Blind("the policy has failed (internal_error in `opsctl events`)")
            return None

    def _judge(
        self, serving: str, own: Decision | None, situation: Situation, now: float
    ) -> Judgement:
        rules = self._ruling()
        if own is None:
            outside = f"{serving} is not of the pair: what an operator chose is left alone"
            wanted = Decision("stay", serving, self.blind or outside)
        else:
            wanted = _forced(rules, serving) if rules.forced else own
        if wanted.action == "stay":
            return Judgement(now, wanted, ())
        return Judgement(now, wanted, self.against(wanted.profile, situation, now))

    def _keep(self, own: Judgement) -> None:
        """Keep the policy's own decision for replay, when it is news."""
        if own.is_news(self._own):
            against = tuple(veto.why for veto in own.vetoes)
            self.journal.note(Decided(own.time, self._clocks.wall(), own.decision, against))
        self._own = own

    def _tell(self, judgement: Judgement) -> None:
        decision = judgement.decision
        self._record(
            "decision",
            action=decision.action,
            profile=decision.profile,
            reason=decision.reason,
            change=decision.change,
            urgent=decision.urgent,
            numbers=dict(decision.numbers),
            vetoes=[veto.why for veto in judgement.vetoes],
            policy=self._policy.name if self._policy is not None else "",
        )

    def _take_over(self, setup: SetUp, prepared: Prepared) -> None:
        self.prepared = replace(prepared, plan=setup.plan)
        self.book.mechanism = prepared.choice.mechanism

    def _learn(self, costs: Costs) -> None:
        """A switch is done: its seconds are what the next one is expected to cost."""
        prepared, policy = self.prepared, self._policy
        if prepared is None or policy is None:
            return
        if costs.mechanism != prepared.choice.mechanism:
            return  # an operator's switch, while speculation is moved inside the engine
        learn(policy, costs)
        plan = prepared.plan.model_copy(update={"costs": PlannedCosts.of(costs)})
        self.prepared = replace(prepared, plan=plan)
        self.journal.begin_with(self.set_up(self.prepared, "again"))

    def _ruling(self) -> Ruling:
        return ruling(self._windows, self._clocks.wall(), self._clocks.local)

    def _guarding(self) -> Guarding:
        rules = self.rules
        return Guarding(
            dwell=rules.dwell,
            cooldown=rules.cooldown,
            switches_per_hour=rules.switches_per_hour,
            observe=rules.observe,
            maintenance=tuple(f"{window} {window.switches}" for window in self._windows),
        )


def _forced(rules: Ruling, serving: str) -> Decision:
    words = f"maintenance {rules.window}: {rules.forced} is to serve"
    if serving == rules.forced:
        return Decision("stay", serving, words)
    return Decision("switch", rules.forced, words)
