"""What a configuration names on the disk, and what of it a service must be able to write. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from opsctl.config.names import expand_home
from opsctl.config.schema import (
    Config,
    CredentialSecret,
    EnvSecret,
    FileSecret,
    LaunchProfile,
    Secret,
)

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CUDA = "/usr/local/cuda"
"""The link that the toolkit's packages keep to the release in use."""
WRITTEN = frozenset(
    {"FLASHINFER_WORKSPACE_BASE", "TRITON_HOME", "HF_HOME", "TMPDIR", "VLLM_CACHE_ROOT"}
)
"""Variables that name a folder the engine writes to, besides those with CACHE in their name."""
WRITTEN_FLAGS = ("crash-dump-folder", "file-storage-path", "export-metrics-to-file-dir")
HOMES = ("/home", "/root", "/run/user")
"""What ProtectHome= hides."""


def search_path(config: Config, home: str | None) -> str:
    """PATH of the service: engines' interpreters, nvcc of each CUDA_HOME, then the system's."""
    interpreters = (_python(profile, home) for profile in config.profiles.values())
    engines = [str(PurePosixPath(path).parent) for path in interpreters if "/" in path]
    toolkits = [*cuda_homes(config), CUDA]
    parts = [*engines, *(f"{toolkit}/bin" for toolkit in toolkits), *DEFAULT_PATH.split(":")]
    return ":".join(dict.fromkeys(parts))


def cuda_homes(config: Config) -> tuple[str, ...]:
    """Every CUDA_HOME that a profile sets, once."""
    found = (profile.environment.get("CUDA_HOME") for profile in config.profiles.values())
    return tuple(dict.fromkeys(value for value in found if isinstance(value, str) and value))


def secrets(config: Config) -> Iterator[Secret]:
    """Every reference to a secret."""
    if config.serve.gateway.api_key is not None:
        yield config.serve.gateway.api_key
    for profile in config.profiles.values():
        for value in profile.environment.values():
            if isinstance(value, FileSecret | EnvSecret | CredentialSecret):
                yield value


def credentials(config: Config) -> tuple[str, ...]:
    """Names of the secrets that systemd is to pass, in order."""
    found = {
        secret.credential for secret in secrets(config) if isinstance(secret, CredentialSecret)
    }
    return tuple(sorted(found))


def takes_environment_secrets(config: Config) -> bool:
    """Whether a secret is taken from opsctl's own environment."""
    return any(isinstance(secret, EnvSecret) for secret in secrets(config))


def read(config: Config, home: str | None) -> tuple[str, ...]:
    """Absolute paths of what the engine reads: interpreters, checkpoints, secrets."""
    found: list[str] = []
    for profile in config.profiles.values():
        found += [_python(profile, home), profile.model, profile.draft_model or ""]
    found += [secret.file for secret in secrets(config) if isinstance(secret, FileSecret)]
    return _absolute(found, home)


def checkpoints(config: Config, home: str | None) -> tuple[str, ...]:
    """Absolute paths of models: their disks must be mounted first."""
    profiles = config.profiles.values()
    return _absolute([x for p in profiles for x in (p.model, p.draft_model or "")], home)


def written(config: Config, home: str | None) -> tuple[str, ...]:
    """Absolute paths that the configuration tells the engine to write to."""
    found = [config.provision.engine_env.cache_dir]
    for profile in config.profiles.values():
        for name, value in profile.environment.items():
            if isinstance(value, str) and ("CACHE" in name or name in WRITTEN):
                found.append(value)
        found += [str(profile.flags[flag]) for flag in WRITTEN_FLAGS if profile.flags.get(flag)]
    return _absolute(found, home)


def in_a_home(paths: Iterable[str]) -> tuple[str, ...]:
    """Those of the paths that ProtectHome=yes would hide."""
    return tuple(path for path in paths if any(below(path, home) for home in HOMES))


def below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it."""
    return PurePosixPath(path).is_relative_to(folder)


def _python(profile: LaunchProfile, home: str | None) -> str:
    return expand_home(profile.python or "", home)


def _absolute(paths: Iterable[str], home: str | None) -> tuple[str, ...]:
    expanded = (expand_home(path, home) for path in paths)
    return tuple(dict.fromkeys(path for path in expanded if path.startswith("/")))
