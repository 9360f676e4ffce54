"""The watchdog: asks the policy, applies the guards, remembers the last decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opsctl.autospec.guards import GuardRules, Situation, Veto, vetoes
from opsctl.autospec.load import LoadSample
from opsctl.autospec.policy import Decision, Policy
from opsctl.autospec.sustained_load import SustainedLoad
from opsctl.config.auto_spec import AutoSpecConfig


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


class Automation:
    """Decides once a second whether another profile should serve. `enabled` is `--auto-spec`."""

    def __init__(
        self, config: AutoSpecConfig, *, enabled: bool, record: Callable[..., None]
    ) -> None:
        self.paused = False
        self.last: Judgement | None = None
        self._record = record
        self.configure(config, enabled=enabled)

    def configure(self, config: AutoSpecConfig, *, enabled: bool) -> None:
        """Take over a (new) configuration."""
        self.enabled = enabled
        self.rules = GuardRules(config.dwell, config.switches_per_hour, config.observe)
        marks = config.sustained_load
        self.policy: Policy = SustainedLoad(
            config.speculative,
            config.baseline,
            high=marks.high,
            high_for=marks.high_for,
            low=marks.low,
            low_for=marks.low_for,
        )

    def see(self, sample: LoadSample, serving: str | None) -> None:
        """Hand a sample of load to the policy; `serving` answers requests, None: nobody does."""
        self.policy.see(sample, serving)

    def judge(self, profile: str, situation: Situation, now: float) -> Judgement | None:
        """What should be done while `profile` serves; None when automation is not enabled."""
        if not self.enabled or not situation.serving:
            return None
        decision = self.policy.decide(profile, now)
        against: tuple[Veto, ...] = ()
        if decision.action == "switch":
            against = vetoes(self.rules, situation, decision.profile, now)
        judgement = Judgement(now, decision, against)
        if self._is_news(judgement):
            self._tell(judgement)
        self.last = judgement
        return judgement

    def _is_news(self, new: Judgement) -> bool:
        old = self.last
        return (
            old is None
            or (old.decision.action, old.decision.profile)
            != (new.decision.action, new.decision.profile)
            or len(old.vetoes) != len(new.vetoes)
        )

    def _tell(self, judgement: Judgement) -> None:
        decision = judgement.decision
        self._record(
            "decision",
            action=decision.action,
            profile=decision.profile,
            reason=decision.reason,
            numbers=dict(decision.numbers),
            vetoes=[veto.why for veto in judgement.vetoes],
            policy=self.policy.name,
        )
