"""The hosts and variables that Ansible gets, made from the configuration."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.config.provision import HostConfig, ProvisionConfig
from opsctl.config.schema import Config
from opsctl.errors import PreconditionError, UsageError
from opsctl.profiles.catalogue import CatalogueError, shipped
from opsctl.provision.places import PENDING

HERE = "localhost"
ROLES = (
    "check_host",
    "nvidia_repo",
    "nvidia_driver",
    "cuda_toolkit",
    "gpu_tuning",
    "engine_env",
    "sm120_patches",
    "model_store",
    "opsctl_service",
    "verify",
)
"""In the order of site.yml."""
Variables = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What is asked for: the configuration, its text, and what shall become of the hosts."""

    config: Config
    text: str
    """The configuration file as it is written: what the host's service will run with."""
    state: str = "present"


def hosts(config: Config, limit: Sequence[str] = ()) -> dict[str, HostConfig]:
    """Return the hosts to provision, this machine when none is configured.

    Raises UsageError for a name that is not there.
    """
    known = dict(config.provision.hosts) or {HERE: HostConfig()}
    unknown = [name for name in limit if name not in known]
    if unknown:
        raise UsageError(
            f"no host {', '.join(unknown)}", hint=f"configured hosts: {', '.join(known)}"
        )
    return {name: host for name, host in known.items() if not limit or name in limit}


def inventory(request: Request, chosen: Mapping[str, HostConfig]) -> Variables:
    """Return an Ansible inventory. Raises PreconditionError where a file cannot be read."""
    common = variables(request)
    entries = {name: _connection(host) for name, host in chosen.items()}
    return {"all": {"hosts": entries, "vars": common}}


def _connection(host: HostConfig) -> Variables:
    found: Variables = {"ansible_python_interpreter": host.python}
    if host.address is None:
        return {**found, "ansible_connection": "local"}
    found |= {
        "ansible_connection": "ssh",
        "ansible_host": host.address,
        "ansible_port": host.port,
        "ansible_user": host.user,
        "ansible_become": host.user != "root",
    }
    if host.identity_file:
        found["ansible_ssh_private_key_file"] = str(Path(host.identity_file).expanduser())
    if host.known_hosts:
        file = Path(host.known_hosts).expanduser()
        found["ansible_ssh_common_args"] = f"-o UserKnownHostsFile={file}"
    return found


def variables(request: Request) -> Variables:
    """Return every variable of every role: the configured ones, and those worked out here."""
    provision = request.config.provision
    found: Variables = {"opsctl_state": request.state, "opsctl_pending_path": PENDING}
    for role in ROLES:
        section = getattr(provision, role).model_dump(mode="json")
        found |= {f"{role}_{key}": value for key, value in section.items()}
    return found | computed(request)


def computed(request: Request) -> Variables:
    """Return the variables that no key of the configuration holds as it is."""
    config, provision = request.config, request.config.provision
    service, engine = provision.opsctl_service, provision.engine_env
    wheel = service.package if service.package.endswith(".whl") else ""
    instances = [
        {"name": name, "config_content": _text(path, f"opsctl_service.instances.{name}")}
        for name, path in service.instances.items()
    ] or [{"name": "", "config_content": request.text}]
    return {
        **_key(provision),
        "engine_env_constraints_content": (
            _text(engine.constraints, "engine_env.constraints") if engine.constraints else ""
        ),
        "engine_env_flashinfer": _pinned(engine.sglang),
        "engine_env_user": service.user,
        "sm120_patches_required": sorted(_patches(config)),
        "sm120_patches_python": f"{engine.path}/bin/python",
        "sm120_patches_opsctl": f"{service.path}/bin/opsctl",
        "model_store_paths": _models(config),
        "model_store_python": f"{engine.path}/bin/python",
        "opsctl_service_instances": instances,
        "opsctl_service_package_content_path": str(Path(wheel).expanduser()) if wheel else "",
        "opsctl_service_engine_python": f"{engine.path}/bin/python",
        "verify_opsctl": f"{service.path}/bin/opsctl",
        "verify_listen": [config.serve.listen],
        "verify_instances": [instance["name"] for instance in instances],
    }


def _key(provision: ProvisionConfig) -> Variables:
    repository = provision.nvidia_repo
    if not repository.manage or not repository.key:
        return {"nvidia_repo_key_content": "", "nvidia_repo_key_suffix": "asc"}
    content = _bytes(repository.key, "nvidia_repo.key")
    armored = content.lstrip().startswith(b"-----BEGIN PGP")
    return {
        "nvidia_repo_key_content": base64.b64encode(content).decode(),
        "nvidia_repo_key_suffix": "asc" if armored else "gpg",
    }


def _pinned(version: str) -> str:
    try:
        return shipped(version).pins.get("flashinfer-python", "").removeprefix("==")
    except CatalogueError:
        return ""


def _patches(config: Config) -> set[str]:
    wanted = set(config.provision.sm120_patches.names)
    return wanted.union(*(profile.requires_patches for profile in config.profiles.values()))


def _models(config: Config) -> list[dict[str, str | None]]:
    store = config.provision.model_store
    found: dict[str, dict[str, str | None]] = {}
    for profile in config.profiles.values():
        for path in (profile.model, profile.draft_model or ""):
            if path.startswith("/"):
                found[path] = {"path": path, "source": None, "revision": None}
    for path, model in store.models.items():
        found[path] = {"path": path, "source": model.source, "revision": model.revision}
    return list(found.values())


def _text(path: str, key: str) -> str:
    try:
        return _bytes(path, key).decode()
    except UnicodeDecodeError as error:
        raise PreconditionError(f"provision.{key}: {path} is not UTF-8 text") from error


def _bytes(path: str, key: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise PreconditionError(
            f"provision.{key}: {path}: {error.strerror}",
            hint="the file is read on the machine that runs `opsctl provision`",
        ) from error
