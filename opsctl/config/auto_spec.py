"""Keys of the watchdog: `auto_spec`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from opsctl.config.base import Model
from opsctl.config.units import Duration
from opsctl.config.weekly import parse_clock, parse_days


class SustainedLoad(Model):
    """High and low water marks on running + queued requests, each to be held for a time."""

    high: Annotated[float, Field(gt=0)] = Field(
        8, description="Load from which on the baseline profile is wanted."
    )
    high_for: Duration = Field(30.0, description="How long load must stay at or above `high`.")
    low: Annotated[float, Field(ge=0)] = Field(
        3, description="Load up to which the speculative profile is wanted."
    )
    low_for: Duration = Field(60.0, description="How long load must stay at or below `low`.")


def _readable(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Check that a text can be read; it is kept as it was written."""

    def check(text: str) -> str:
        parse(text)
        return text

    return check


TimeOfDay = Annotated[str, AfterValidator(_readable(parse_clock))]


class Maintenance(Model):
    """A span of the host's local time in which automatic switches are ruled."""

    model_config = ConfigDict(populate_by_name=True)

    days: Annotated[str, AfterValidator(_readable(parse_days))] = Field(
        "daily", description="Weekdays: mon-fri, sat,sun or daily."
    )
    begin: TimeOfDay = Field(alias="from", description='Local time such as "02:00", in quotes.')
    end: TimeOfDay = Field(alias="to", description="Not after `from`: of the next day.")
    switches: Literal["never", "only", "forced"] = Field(
        description="Inside it never, or only inside such windows, or `profile` is to serve."
    )
    profile: str = Field("", description="Profile of a forced window.")

    @model_validator(mode="after")
    def _make_sense(self) -> Self:
        if (self.switches == "forced") != bool(self.profile):
            raise ValueError("`profile` is set for switches: forced, and only then")
        return self


class AutoSpecConfig(Model):
    """The watchdog that switches between a speculative and a baseline profile."""

    policy: Literal["cost_aware", "sustained_load", "always"] = Field(
        "cost_aware",
        description="How the watchdog decides: by measured surfaces and what a switch costs, by "
        "water marks on the load, or always the same profile.",
    )
    speculative: str = Field("", description="Profile for low load.")
    baseline: str = Field("", description="Profile for high load.")
    always: str = Field("", description="Profile of the policy `always`.")
    mechanism: Literal["auto", "in_engine", "gated_restart", "restart"] = Field(
        "auto",
        description="How speculation is turned on and off; `auto` takes the cheapest that applies "
        "to the pair, and `serve.mechanism`, where it is written, between the two restarts.",
    )
    sustained_load: SustainedLoad = Field(default_factory=SustainedLoad)
    noise: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.03, description="Difference in speed, as a part, that `cost_aware` takes for none."
    )
    observe: bool = Field(False, description="Decide and record, but do not switch.")
    dwell: Duration = Field(300.0, description="Least time from ready to the next switch.")
    cooldown: Duration = Field(
        0.0,
        description="Least wait after a switch that was cancelled (the dwell, when that is more); "
        "doubled with each one in a row, at most an hour.",
    )
    switches_per_hour: Annotated[int, Field(ge=0)] = Field(
        6, description="Most automatic switches within any hour."
    )
    maintenance: Annotated[
        tuple[Maintenance, ...],
        BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
    ] = Field(
        (),
        description="Spans of local time, each with `days` (mon-fri, sat,sun or daily), `from` and "
        '`to` ("02:00"), `switches` (never inside it, only inside such spans, or forced) and, when '
        "forced, the `profile` that is to serve.",
    )
