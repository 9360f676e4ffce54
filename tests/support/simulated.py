"""Configurations of simulated engines that start fast, for tests of serving."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from opsctl.bench.traffic import Job, numbered_words
from tests.support.serving import Serving

MODEL = "demo"
TIMEOUTS = {
    "start": "30s",
    "stage": "10s",
    "probe": "5s",
    "drain": "20s",
    "stop": "6s",
    "release": "4s",
}


def profile(surface: str, **flags: object) -> dict[str, Any]:
    """A launch profile of the simulated engine."""
    own: dict[str, object] = {
        "sim-surface": f"demo:{surface}",
        "sim-start-time": 0.5,
        "sim-time-scale": 0.3,
        "sim-drain-poll": 0.1,
        "tp-size": 2,
        "max-running-requests": 64,
    }
    return {
        "engine": "simulated",
        "model": "simulated/demo",
        "served_name": MODEL,
        "flags": own | {name.replace("_", "-"): value for name, value in flags.items()},
        "timeouts": TIMEOUTS,
    }


def configuration(
    path: Path,
    *,
    eagle3: Mapping[str, object] | None = None,
    baseline: Mapping[str, object] | None = None,
    serve: Mapping[str, object] | None = None,
    auto_spec: Mapping[str, object] | None = None,
) -> Path:
    """Write a configuration with both profiles; the mappings change it in places."""
    speculative = {
        "speculative-algorithm": "EAGLE3",
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
    }
    document = {
        "profiles": {
            "baseline": profile("baseline", **(baseline or {})),
            "eagle3": profile("speculative", **(speculative | dict(eagle3 or {}))),
        },
        "serve": {
            "listen": "127.0.0.1:0",
            "profile": "eagle3",
            "restart": {"backoff_first": "200ms", "backoff_max": "1s"},
            "health": {"hang_after": "4s", "probe_every": "3s", "probe_timeout": "3s"},
            "gateway": {"hold": {"time": "60s"}},
            **(serve or {}),
        },
        "auto_spec": {
            "policy": "sustained_load",
            "mechanism": (serve or {}).get("mechanism", "restart"),
            "speculative": "eagle3",
            "baseline": "baseline",
            "sustained_load": {"high": 8, "high_for": "2s", "low": 3, "low_for": "3s"},
            "dwell": "2s",
            "switches_per_hour": 60,
            **(auto_spec or {}),
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def serving(tmp_path: Path, *arguments: str, **changes: Any) -> Serving:
    """An instance of `opsctl serve` on simulated engines, to be entered as a context."""
    config = configuration(tmp_path / "opsctl.yaml", **changes)
    return Serving(("--config", str(config), *arguments), tmp_path / "state")


def job(document: Mapping[str, Any], tokens: int = 48) -> Job:
    """Checked chat requests to the instance whose status is `document`."""
    return Job(f"http://{document['listen']}", MODEL, max_tokens=tokens, check=numbered_words)
