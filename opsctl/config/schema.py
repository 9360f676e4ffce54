"""The configuration as frozen models: the single source for validation, JSON Schema and docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from opsctl.config.units import Duration, Size

FlagValue = bool | int | float | str | list[str | int | float] | dict[str, object] | None


class Model(BaseModel):
    """Base of all configuration models: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileSecret(Model):
    """A secret read from the first line of a file."""

    file: str


class EnvSecret(Model):
    """A secret read from an environment variable of opsctl itself."""

    env: str


class CredentialSecret(Model):
    """A secret read from systemd's credentials directory (`LoadCredential=`)."""

    credential: str


Secret = FileSecret | EnvSecret | CredentialSecret


class Timeouts(Model):
    """How long each stage of an engine's life may take."""

    start: Duration = Field(1800.0, description="From spawn to the first generated token, at most.")
    stage: Duration = Field(600.0, description="Without a new sign of progress while starting.")
    probe: Duration = Field(60.0, description="For the one short generation that ends a start.")
    drain: Duration = Field(300.0, description="For in-flight requests to finish before a stop.")
    stop: Duration = Field(90.0, description="From SIGTERM to SIGKILL; SGLang itself may use 75 s.")
    release: Duration = Field(60.0, description="For processes, ports and memory to be seen gone.")


class LaunchProfile(Model):
    """A complete, named way to start the engine."""

    extends: str | None = Field(None, description="Profile whose keys this one starts from.")
    engine: Literal["sglang", "simulated"] = Field("sglang", description="What is started.")
    python: str | None = Field(None, description="Interpreter of the engine's own environment.")
    model: str = Field("", description="Path or name of the target model.")
    draft_model: str | None = Field(None, description="Path or name of the draft model.")
    served_name: str | None = Field(None, description="Model name clients use.")
    flags: Mapping[str, FlagValue] = Field(
        default_factory=dict,
        description="Engine flags without dashes; true is a bare flag, null or false removes it.",
    )
    environment: Mapping[str, str | None | Secret] = Field(
        default_factory=dict,
        description='Environment variables or references to secrets; null or "" removes one.',
    )
    timeouts: Timeouts = Field(default_factory=Timeouts)
    expect_log: tuple[str, ...] = Field(
        (), description="Texts the log must show by ready; a missing one marks the start degraded."
    )


class Hold(Model):
    """Bounds of what the gateway holds while no engine serves; beyond it clients get 503."""

    requests: Annotated[int, Field(ge=0)] = 1000
    bytes: Size = 256 * 2**20
    time: Duration = Field(2400.0, description="The longest a request may wait for an engine.")


class GatewayConfig(Model):
    """The HTTP front that clients talk to."""

    api_key: Secret | None = Field(None, description="Key clients must send as a bearer token.")
    keep_body: Size = Field(8 * 2**20, description="Bodies up to this size can be sent again.")
    heartbeat_after: Duration = Field(30.0, description="Held streams get headers after this.")
    heartbeat_every: Duration = Field(10.0, description="Interval of SSE comments to held streams.")
    attempts: Annotated[int, Field(ge=1)] = Field(
        3, description="Engines a request without a response byte may be tried on."
    )
    hold: Hold = Field(default_factory=Hold)


class HealthConfig(Model):
    """When a running engine counts as hung."""

    hang_after: Duration = Field(60.0, description="Work in flight and nothing moves for this long.")
    probe_every: Duration = Field(60.0, description="Interval of the idle probe.")
    probe_timeout: Duration = Field(30.0, description="For the idle probe's short generation.")


class RestartConfig(Model):
    """What happens after crashes, hangs and failed starts."""

    backoff_first: Duration = 1.0
    backoff_max: Duration = 60.0
    quarantine_after: Annotated[int, Field(ge=1)] = Field(
        2, description="Failures of one profile in a row that put it in quarantine."
    )
    quarantine_for: Duration = 3600.0
    budget: Annotated[int, Field(ge=1)] = Field(
        6, description="Failures within `budget_window` after which opsctl gives up (exit 69)."
    )
    budget_window: Duration = 900.0


class ServeConfig(Model):
    """How the engine is supervised and where clients reach it."""

    listen: str = Field("127.0.0.1:8000", description="HOST:PORT of the gateway.")
    profile: str = Field("", description="Launch profile to start with.")
    engine_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Loopback port of the engine; 0 picks a free one."
    )
    on_drain_timeout: Literal["cancel", "cut"] = Field(
        "cancel",
        description="What a switch does when requests outlast `timeouts.drain`: stay, or cut them.",
    )
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    health: HealthConfig = Field(default_factory=HealthConfig)
    restart: RestartConfig = Field(default_factory=RestartConfig)


class SustainedLoad(Model):
    """High and low water marks on running + queued requests, each to be held for a time."""

    high: Annotated[float, Field(gt=0)] = 8
    high_for: Duration = 30.0
    low: Annotated[float, Field(ge=0)] = 3
    low_for: Duration = 60.0


class AutoSpecConfig(Model):
    """The watchdog that switches between a speculative and a baseline profile."""

    policy: Literal["sustained_load"] = "sustained_load"
    speculative: str = Field("", description="Profile for low load.")
    baseline: str = Field("", description="Profile for high load.")
    sustained_load: SustainedLoad = Field(default_factory=SustainedLoad)
    observe: bool = Field(False, description="Decide and record, but do not switch.")
    dwell: Duration = Field(300.0, description="Least time from ready to the next switch.")
    switches_per_hour: Annotated[int, Field(ge=0)] = 6


class Config(Model):
    """Everything opsctl.yaml may say."""

    state_dir: str | None = Field(None, description="Where state, socket, logs and events live.")
    profiles: Mapping[str, LaunchProfile] = Field(default_factory=dict)
    serve: ServeConfig = Field(default_factory=ServeConfig)
    auto_spec: AutoSpecConfig = Field(default_factory=AutoSpecConfig)
