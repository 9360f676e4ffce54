"""What a measurement is only good for: host, driver, GPUs, and each profile's software."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from opsctl import __version__
from opsctl.bench.results import Profile
from opsctl.config.flags import canonical
from opsctl.config.schema import LaunchProfile
from opsctl.engine.redact import is_secret
from opsctl.gpu import nvml
from opsctl.patching.preflight import of_profile
from opsctl.profiles.fingerprint import fingerprint


async def host() -> dict[str, Any]:
    """The host, as far as it can be read."""
    snapshot = await nvml.read_async(deadline=5.0)
    return {
        "opsctl": __version__,
        "host": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "driver": snapshot.driver,
        "cuda": snapshot.cuda,
        "gpus": [
            {"index": g.index, "uuid": g.uuid, "name": g.name, "power_limit_w": g.power_limit,
             "pcie": [g.pcie_generation_max, g.pcie_width_max]}
            for g in snapshot.gpus
        ],
    }  # fmt: skip


def configured(name: str, profile: LaunchProfile) -> Profile:
    """A profile that will be started; what its server says comes with `told`."""
    flags = {canonical(key): value for key, value in profile.flags.items()}
    patches = sorted(of_profile(profile).applied) if profile.engine == "sglang" else []
    return Profile(
        name=name,
        fingerprint=fingerprint(profile),
        speculative=bool(flags.get("speculative-algorithm")),
        flags={key: "***" if is_secret(key) else value for key, value in flags.items()},
        versions={"patches": ", ".join(patches)} if patches else {},
    )


def told(known: Profile, info: Mapping[str, Any]) -> Profile:
    """The same with what its server says about itself."""
    versions = {
        name: str(info[key])
        for name, key in (("sglang", "version"), ("flashinfer", "flashinfer_version"))
        if info.get(key)
    }
    if str(info.get("engine", "")).startswith("opsctl-simulated"):
        versions = {"simulated": str(info.get("version"))}
    speculative = known.speculative or bool(info.get("speculative_algorithm"))
    return known.model_copy(
        update={"versions": {**known.versions, **versions}, "speculative": speculative}
    )
