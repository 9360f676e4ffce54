"""What a benchmark leaves: a directory with result.json and one JSON file a cell.

A cell is one launch profile at one concurrency and one context, measured once. Cells are written
one by one and atomically, so that a run that was killed can be resumed and what it had measured
counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opsctl.errors import OpsctlError
from opsctl.system.files import write_atomic

SCHEMA: Literal["opsctl/bench/v1"] = "opsctl/bench/v1"
RESULT, CELLS = "result.json", "cells"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Quantiles(_Model):
    """Quantiles of a latency, in seconds."""

    p50: float
    p90: float
    p99: float


class Cell(_Model):
    """One measurement. Figures of a cell that is not valid are kept, and mean nothing."""

    profile: str
    concurrency: int = Field(ge=1)
    """Requests asked to run at once."""
    context: int = Field(ge=0)
    """Tokens of prompt before the task itself."""
    repeat: int = Field(ge=0)
    valid: bool
    reason: str = ""
    """Why it is not valid; `N/A (58/64)` where the concurrency was not reached."""
    tokens: int = Field(ge=0)
    """Generated in the steady window, by `usage`."""
    seconds: float = Field(ge=0)
    """Length of the steady window."""
    throughput_tok_s: float
    per_user_tok_s: float
    ttft_s: Quantiles | None
    """Time to first token."""
    tpot_s: Quantiles | None
    """Time per output token of a request, after its first."""
    accept_length: float | None = None
    effective_concurrency: float | None = None
    """Mean of the requests that ran, by the engine's own word."""
    requests: int = 0
    output_tokens_mean: float | None = None
    prefix_cache_hit_rate: float | None = None
    client_cpu: float | None = None
    """Share of one core that the client used."""
    gpus: tuple[Mapping[str, float | str | None], ...] = ()
    """Clocks, power and temperature at the end, where they can be read."""
    mode: Literal["throughput", "latency"] = "throughput"
    """throughput: greedy, ignore_eos, fixed length. latency: natural ends."""
    extra: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name of its file, without the ending."""
        return f"{self.profile}-c{self.concurrency}-k{self.context}-r{self.repeat}"


class Profile(_Model):
    """A profile that was measured, as far as it decides the speed."""

    name: str
    fingerprint: str
    """Of the launch profile; empty where a running server was measured."""
    speculative: bool
    flags: Mapping[str, Any] = Field(default_factory=dict)
    versions: Mapping[str, str | None] = Field(default_factory=dict)
    """SGLang, FlashInfer and the patches applied, where they can be told."""


class Result(_Model):
    """A whole run."""

    schema_: Literal["opsctl/bench/v1"] = Field(SCHEMA, alias="schema")
    started: str
    """UTC, ISO 8601."""
    environment: Mapping[str, Any]
    """Host, driver, GPUs, kernel: what a surface is only good for."""
    workload: str
    salted: bool
    profiles: tuple[Profile, ...]
    grid: Mapping[str, Any]
    complete: bool
    cells: tuple[Cell, ...] = ()


class ResultError(OpsctlError):
    """A result directory cannot be read."""


def save_cell(folder: Path, cell: Cell) -> None:
    """Write a cell; raises OSError."""
    path = folder / CELLS / f"{cell.key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, cell.model_dump_json(indent=1) + "\n", mode=0o644)


def save_result(folder: Path, result: Result) -> None:
    """Write result.json with every cell in it; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    text = result.model_dump_json(indent=1, by_alias=True) + "\n"
    write_atomic(folder / RESULT, text, mode=0o644)


def cells(folder: Path) -> Iterator[Cell]:
    """Return the cells on disk; half-written or damaged ones are left out, to be measured again."""
    for path in sorted((folder / CELLS).glob("*.json")):
        try:
            yield Cell.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue


def load(folder: Path) -> Result:
    """Read a result; raises ResultError naming the file and what is wrong with it."""
    path = folder / RESULT if folder.is_dir() else folder
    try:
        return Result.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}", hint="name a result directory") from error
    except (ValidationError, ValueError) as error:
        raise ResultError(f"{path}: not a result of `opsctl bench`: {error}") from error
