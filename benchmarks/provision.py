"""What `opsctl provision` adds to Ansible itself: a run that changes nothing, beside plain
`ansible-playbook` with the same play, inventory and settings.

On a real systemd host without network (see tests/support/hosts), which is provisioned once first.
Pairs run alternately. The target is a median ratio of 1.15 at most.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opsctl.config.load import load
from opsctl.provision.inventory import Request, hosts, inventory
from opsctl.provision.run import SETTINGS
from tests.support.hosts import standin_repository, systemd_host, wheelhouse

PAIRS = 5
TARGET = 1.15
ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent


def seconds(argv: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the wall time of one run of `argv`, which must succeed."""
    began = time.perf_counter()
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{argv[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began


def configuration(entry: Mapping[str, object], url: str, key: Path) -> dict[str, Any]:
    """Return a configuration that provisions a host from what is on it."""
    profile = {"engine": "simulated", "model": "simulated/tiny", "flags": {"sim-start-time": 0.2}}
    return {
        "profiles": {"only": profile},
        "provision": {
            "hosts": {"host": dict(entry)},
            "check_host": {"require_gpu": False, "free_disk": 0},
            "nvidia_repo": {"url": url, "key": str(key)},
            "engine_env": {"wheels": "/wheels"},
            "opsctl_service": {"wheels": "/wheels", "auto_spec": False},
            "verify": {"timeout": 90, "allow": ["build-tools"]},
        },
    }


def measure(folder: Path) -> list[tuple[float, float]]:
    """Return seconds of plain Ansible and of opsctl, in pairs."""
    repository = standin_repository(folder / "repository", "bookworm")
    binds = {**repository.binds, "/wheels": wheelhouse("3.11")}
    files = {"/usr/bin/g++": b"#!/bin/sh\n"}
    with systemd_host("bookworm", binds=binds, files=files) as host:
        path = folder / "opsctl.yaml"
        document = configuration(host.configuration(), repository.url, repository.key)
        path.write_text(yaml.safe_dump(document))
        config = load((path,), environment={}).config
        listing = folder / "hosts.json"
        listing.write_text(json.dumps(inventory(Request(config, path.read_text()), hosts(config))))
        environment = {**os.environ, **SETTINGS, "PATH": f"{BIN}:{os.environ['PATH']}"}
        ours = [str(BIN / "opsctl"), "provision", "--yes", "--config", str(path)]
        ours += ["--state-dir", str(folder / "state"), "-o", "json"]
        plain = [str(BIN / "ansible-playbook"), "-i", str(listing)]
        plain += [str(ROOT / "playbooks/site.yml")]
        seconds(ours, environment)  # the first run changes the host
        pairs = []
        for number in range(PAIRS):
            order = (plain, ours) if number % 2 else (ours, plain)
            took = {id(argv): seconds(argv, environment) for argv in order}
            pairs.append((took[id(plain)], took[id(ours)]))
        return pairs


def main() -> int:
    """Print both medians, their ratio, and whether the target is met."""
    if os.geteuid() != 0:
        print("a systemd host needs root: not measured")
        return 0
    with tempfile.TemporaryDirectory() as name:
        pairs = measure(Path(name))
    ratios = sorted(ours / theirs for theirs, ours in pairs)
    median = statistics.median(ratios)
    print(f"ansible-playbook   median {statistics.median(p[0] for p in pairs):6.1f} s")
    print(f"opsctl provision   median {statistics.median(p[1] for p in pairs):6.1f} s")
    print(f"ratio              median {median:.2f}  (from {ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"target             {TARGET:g}x or less: {'met' if median <= TARGET else 'MISSED'}")
    return 0 if median <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
