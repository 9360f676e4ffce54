"""Reading what a checkpoint says of itself: its config files and which shards are there.

The files come from a download and are taken for what they are: large, broken or hostile ones give
nothing. No weight is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 32 * 2**20  # an index of a 500 GB checkpoint has about 6 MB
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """What stands beside the weights; None where a file is not there or cannot be read."""

    config: Mapping[str, Any] | None = None
    quantization: Mapping[str, Any] | None = None
    """hf_quant_config.json, as NVIDIA's ModelOpt writes it."""
    missing: tuple[str, ...] = ()
    """Shards of the index that are not there or are empty, in name order."""


def read(directory: Path) -> Checkpoint:
    """Read a checkpoint's directory; never raises for what is in it."""
    config = read_json(directory / "config.json")
    quantization = read_json(directory / "hf_quant_config.json")
    return Checkpoint(_mapping(config), _mapping(quantization), _missing(directory))


def read_json(path: Path) -> object:
    """The content of a JSON file; None for anything that is not one, or is too large."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _missing(directory: Path) -> tuple[str, ...]:
    index = _mapping(read_json(directory / INDEX)) or {}
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        return ()
    # A name with a folder in it could lead out of the checkpoint.
    names = {x for x in shards.values() if isinstance(x, str) and x and "/" not in x}
    return tuple(sorted(name for name in names if not _there(directory / name)))


def _there(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except (OSError, ValueError):
        return False
