"""The configuration as frozen models: the single source for validation, JSON Schema and docs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)

from opsctl.config.auto_spec import AutoSpecConfig
from opsctl.config.base import Model, Texts
from opsctl.config.provision import ProvisionConfig
from opsctl.config.units import Duration, Size, Written


class FileSecret(Model):
    """A secret read from the first line of a file."""

    file: Annotated[str, Field(min_length=1)]


class EnvSecret(Model):
    """A secret read from an environment variable of opsctl itself."""

    env: Annotated[str, Field(min_length=1)]


class CredentialSecret(Model):
    """A secret read from systemd's credentials directory (`LoadCredential=`)."""

    # A bare name: with a slash in it, it would be a path out of the credentials directory.
    credential: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*$")]


def _secret_kind(value: Any) -> str | None:
    """Which reference this is; None refuses it with a message that does not show the value."""
    if isinstance(value, FileSecret | EnvSecret | CredentialSecret):
        [kind] = type(value).model_fields
        return kind
    if isinstance(value, dict) and len(value) == 1:
        return next((kind for kind in ("file", "env", "credential") if kind in value), None)
    return None


Secret = Annotated[
    Annotated[FileSecret, Tag("file")]
    | Annotated[EnvSecret, Tag("env")]
    | Annotated[CredentialSecret, Tag("credential")],
    Discriminator(
        _secret_kind,
        custom_error_type="secret_reference",
        custom_error_message=(
            "a secret is never written here, only where it is: "
            "{file: PATH}, {env: NAME} or {credential: NAME}"
        ),
    ),
    Written("secret reference"),
]
"""Where a secret is found; a literal secret is refused."""


def _flag_value(value: Any) -> Any:
    items = value if isinstance(value, list | tuple) else [value]
    ok = all(isinstance(item, bool | int | float | str | dict) or item is None for item in items)
    if isinstance(value, list | tuple):
        ok = all(
            isinstance(item, int | float | str) and not isinstance(item, bool) for item in items
        )
    if not ok:
        raise ValueError(
            "a flag is true, a number, text, a list of numbers and texts, or a mapping (JSON)"
        )
    return value


FlagValue = Annotated[
    bool | int | float | str | list[str | int | float] | dict[str, Any] | None,
    BeforeValidator(_flag_value),
    Written("true, number, text, list, mapping (JSON), or null or false to remove it"),
]
"""The value of an engine flag."""


def _environment_value(value: Any) -> Any:
    if isinstance(value, bool):
        word = str(value).lower()
        raise ValueError(f'a variable\'s value is text; write "1" or "{word}" in quotes')
    if isinstance(value, int):
        return str(value)  # NCCL_P2P_DISABLE: 1 has only one reading
    if isinstance(value, float):
        raise ValueError("a variable's value is text; write the number in quotes")
    if isinstance(value, list | tuple):
        raise ValueError("a variable's value is text, not a list")
    return value


def _environment_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("not a name for an environment variable")
    return name


def _environment_kind(value: Any) -> str:
    return "text" if value is None or isinstance(value, str) else "secret"


EnvironmentValue = Annotated[
    Annotated[str | None, Tag("text")] | Annotated[Secret, Tag("secret")],
    Discriminator(_environment_kind),
    BeforeValidator(_environment_value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": ["string", "integer", "null"]},
                {
                    "type": "object",
                    "properties": {
                        kind: {"type": "string"} for kind in ("file", "env", "credential")
                    },
                    "additionalProperties": False,
                    "minProperties": 1,
                    "maxProperties": 1,
                },
            ]
        }
    ),
    Written('text or secret reference; null or "" removes it'),
]
"""The value of an environment variable of the engine."""

EnvironmentName = Annotated[str, AfterValidator(_environment_name)]


def _profile_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        raise ValueError(
            "a profile's name is up to 64 letters, digits, `-`, `_` and `.`, "
            "starting with a letter or digit"
        )
    return name


ProfileName = Annotated[str, AfterValidator(_profile_name)]


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
    environment: Mapping[EnvironmentName, EnvironmentValue] = Field(
        default_factory=dict,
        description='Environment variables or references to secrets; null or "" removes one.',
    )
    requires_patches: Texts = Field(
        (), description="Patches of `opsctl patch list` without which the profile is not started."
    )
    timeouts: Timeouts = Field(default_factory=Timeouts)
    expect_log: Texts = Field(
        (), description="Texts the log must show by ready; a missing one marks the start degraded."
    )


class Hold(Model):
    """Bounds of what the gateway holds while no engine serves; beyond it clients get 503."""

    requests: Annotated[int, Field(ge=0)] = Field(1000, description="Requests held at once.")
    bytes: Size = Field(256 * 2**20, description="Bytes of request bodies held at once.")
    time: Duration = Field(2400.0, description="The longest a request may wait for an engine.")


class GatewayConfig(Model):
    """The HTTP front that clients talk to."""

    api_key: Secret | None = Field(None, description="Key clients must send as a bearer token.")
    keep_body: Size = Field(8 * 2**20, description="Bodies up to this size can be sent again.")
    heartbeat_after: Duration = Field(30.0, description="Held streams get headers after this.")
    heartbeat_every: Duration = Field(10.0, description="Interval of SSE comments to held streams.")
    client_timeout: Annotated[Duration, Field(gt=0)] = Field(
        60.0,
        description="A client that reads nothing of its answer, or sends nothing of its body, for "
        "so long is let go: it would hold up every switch.",
    )
    attempts: Annotated[int, Field(ge=1)] = Field(
        3, description="Engines a request without a response byte may be tried on."
    )
    hold: Hold = Field(default_factory=Hold)


class HealthConfig(Model):
    """When a running engine counts as hung."""

    hang_after: Duration = Field(
        60.0, description="Work in flight and nothing moves for this long."
    )
    probe_every: Duration = Field(60.0, description="Interval of the idle probe.")
    probe_timeout: Duration = Field(30.0, description="For the idle probe's short generation.")


class RestartConfig(Model):
    """What happens after crashes, hangs and failed starts."""

    backoff_first: Duration = Field(
        1.0, description="Wait before the first restart; it doubles with each failure."
    )
    backoff_max: Duration = Field(60.0, description="The longest wait before a restart.")
    quarantine_after: Annotated[int, Field(ge=1)] = Field(
        2, description="Failures of one profile in a row that put it in quarantine."
    )
    quarantine_for: Duration = Field(3600.0, description="How long quarantine lasts.")
    budget: Annotated[int, Field(ge=1)] = Field(
        6, description="Failures within `budget_window` after which opsctl gives up (exit 69)."
    )
    budget_window: Duration = Field(900.0, description="Span in which failures are counted.")


class ServeConfig(Model):
    """How the engine is supervised and where clients reach it."""

    listen: str = Field("127.0.0.1:8000", description="HOST:PORT of the gateway.")
    profile: str = Field("", description="Launch profile to start with.")
    engine_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Loopback port of the engine; 0 picks a free one."
    )
    mechanism: Literal["restart", "gated_restart"] = Field(
        "restart",
        description="How a switch replaces the engine: stop it and start the next one, or (SGLang "
        "0.5.19 and later) bring the next one up to its own gate first, while this one serves.",
    )
    reap_before_start: Literal["own", "stray", "never"] = Field(
        "own",
        description="What may be ended that holds the profile's GPUs: opsctl's own dead engines, "
        "engines of this user that nobody supervises too, or nothing.",
    )
    on_drain_timeout: Literal["cancel", "cut"] = Field(
        "cancel",
        description="What a switch does when requests outlast `timeouts.drain`: stay, or cut them.",
    )
    allow_findings: Texts = Field(
        (), description="Codes of `opsctl profile lint` whose errors do not refuse a start."
    )
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    health: HealthConfig = Field(default_factory=HealthConfig)
    restart: RestartConfig = Field(default_factory=RestartConfig)


class Config(Model):
    """Everything opsctl.yaml may say."""

    state_dir: str | None = Field(None, description="Where state, socket, logs and events live.")
    profiles: Mapping[ProfileName, LaunchProfile] = Field(
        default_factory=dict, description="Launch profiles by name."
    )
    serve: ServeConfig = Field(default_factory=ServeConfig)
    auto_spec: AutoSpecConfig = Field(default_factory=AutoSpecConfig)
    provision: ProvisionConfig = Field(default_factory=ProvisionConfig)
