"""Reads what profiles need and what is there of it: files, checkpoints, ports, caches."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path

from opsctl.config.names import expand_home
from opsctl.config.schema import Config, LaunchProfile
from opsctl.doctor.host import JitCache, Model, Port, ProfileFacts
from opsctl.doctor.read_host import file_system
from opsctl.doctor.sources import Sources, Subject
from opsctl.gpu import jit_locks
from opsctl.patching.preflight import interpreter
from opsctl.profiles import checkpoint as checkpoints
from opsctl.profiles import gpus
from opsctl.profiles.flags import rendered
from opsctl.system import ports as tcp

VARIABLES = ("NCCL_", "LD_PRELOAD", "TRITON_PTXAS_PATH", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE")
"""Beginnings of the variables that the checks look at; none of them holds a secret."""
FILES = ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE", "NCCL_CONF_FILE", "TRITON_PTXAS_PATH")
_PORT_FLAGS = ("port", "nccl-port", "gated-launch-port")
_MANY = 1024
_INDEX_TOTAL = "total_size"


def profiles(subject: Subject) -> tuple[ProfileFacts, ...]:
    """Return what the profiles that run SGLang need."""
    if subject.config is None:
        return ()
    return tuple(_profile(name, x) for name, x in _running(subject.config))


def _running(config: Config) -> Iterator[tuple[str, LaunchProfile]]:
    """Yield profiles that can be started: those without a model are bases of others."""
    for name, profile in config.profiles.items():
        if profile.engine == "sglang" and profile.model:
            yield name, profile


def _profile(name: str, profile: LaunchProfile) -> ProfileFacts:
    flags = {key.replace("_", "-"): value for key, value in profile.flags.items()}
    environment = {
        key: value
        for key, value in profile.environment.items()
        if isinstance(value, str) and value and key.startswith(VARIABLES)
    }
    used = gpus.indices(profile, [None] * _MANY)
    named = [key for key in FILES if key in environment]
    symmetric = rendered(flags.get("enable-torch-symm-mem"))
    peer = "enable-torch-symm-mem" if symmetric else None
    if environment.get("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE") in {"1", "true", "True"}:
        peer = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
    return ProfileFacts(
        name,
        gpus=None if used is None else max(used) + 1,
        environment=environment,
        missing_files=tuple(key for key in named if not Path(environment[key]).exists()),
        torch_symm_mem=symmetric,
        peer_access=peer,
    )


def models(sources: Sources, subject: Subject) -> tuple[Model, ...]:
    """Read every checkpoint that a profile names by its path, each once."""
    found: dict[tuple[str, str], Model] = {}
    for _, profile in _running(subject.config) if subject.config else ():
        python = interpreter(profile)
        for role, value in (("model", profile.model), ("draft_model", profile.draft_model)):
            if value and value.startswith(("/", "./", "../", "~")):
                path = expand_home(value, sources.environment.get("HOME"))
                key = (path, python)
                found.setdefault(key, _model(sources, Path(path), role, python))
    return tuple(found.values())


def _model(sources: Sources, path: Path, role: str, python: str) -> Model:
    kind = "model" if role == "model" else "draft_model"
    if not path.is_dir():
        return Model(str(path), kind, python=python)  # type: ignore[arg-type]
    read = checkpoints.read(path)
    names = (read.config or {}).get("architectures")
    return Model(
        str(path),
        kind,  # type: ignore[arg-type]
        there=True,
        missing=read.missing,
        bytes=sum(file.stat().st_size for file in path.glob("*.safetensors")),
        expected=expected_bytes(checkpoints.read_json(path / checkpoints.INDEX)),
        file_system=file_system(sources, path),
        architectures=tuple(map(str, names)) if isinstance(names, list) else (),
        python=python,
    )


def expected_bytes(index: object) -> int | None:
    """Return the size of all tensors as the index of a checkpoint says; None without one."""
    metadata = index.get("metadata") if isinstance(index, dict) else None
    size = metadata.get(_INDEX_TOTAL) if isinstance(metadata, dict) else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


def ports(subject: Subject) -> tuple[Port, ...]:
    """Try every port the configuration names, and see who listens where one is taken."""
    if subject.config is None:
        return ()
    wanted = dict(_wanted(subject.config))
    hosts = {number: host for number, (host, _) in wanted.items()}
    taken = {number for number in wanted if not tcp.is_free(number, (hosts[number],))}
    holders = {x.port: x for x in tcp.listeners(taken)}
    return tuple(
        _port(number, wanted[number][1], number not in taken, holders) for number in wanted
    )


def _port(number: int, use: str, free: bool, holders: Mapping[int, tcp.Listener]) -> Port:
    holder = holders.get(number)
    ours = holder is not None and "opsctl" in (holder.title or "")
    return Port(number, use, free, "" if holder is None else str(holder), ours)


def _wanted(config: Config) -> Iterator[tuple[int, tuple[str, str]]]:
    host, _, port = config.serve.listen.rpartition(":")
    if port.isdecimal() and int(port):
        yield int(port), (host.strip("[]") or "127.0.0.1", "serve.listen")
    if config.serve.engine_port:
        yield config.serve.engine_port, ("127.0.0.1", "serve.engine_port")
    for name, profile in _running(config):
        for flag, value in profile.flags.items():
            key = flag.replace("_", "-")
            if key in _PORT_FLAGS and isinstance(value, int) and not isinstance(value, bool):
                yield value, ("127.0.0.1", f"{key} of {name}")


def caches(sources: Sources, subject: Subject) -> tuple[JitCache, ...]:
    """Look at the caches of the user who serves, with the variables of each profile."""
    user = _user(subject)
    if user is None:
        return ()
    environments = (
        [_cache_variables(x, user) for _, x in _running(subject.config)] if (subject.config) else []
    )
    own = {name: sources.environment[name] for name in jit_locks.VARIABLES if _own(sources, name)}
    environments = environments or [own if user.pw_uid == os.geteuid() else {"HOME": user.pw_dir}]
    found = {cache for each in environments for cache in jit_locks.caches(user.pw_uid, each)}
    locks = jit_locks.survey(found)
    stale = [x.path for x in locks if x.kind == "baton" and x.stale]
    ordered = sorted(found, key=lambda cache: str(cache.root))
    return tuple(_cache(sources, cache.root, user, stale) for cache in ordered)


def _own(sources: Sources, name: str) -> bool:
    return bool(sources.environment.get(name))


def _user(subject: Subject) -> pwd.struct_passwd | None:
    """Return who serves: for root the service's user where there is one, else the caller."""
    names = [subject.config.provision.opsctl_service.user] if subject.config else []
    for name in names if os.geteuid() == 0 else []:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:
        return None


def _cache_variables(profile: LaunchProfile, user: pwd.struct_passwd) -> dict[str, str]:
    chosen = {
        name: value
        for name in jit_locks.VARIABLES
        if isinstance(value := profile.environment.get(name), str) and value
    }
    return {"HOME": user.pw_dir, **chosen}


def _cache(sources: Sources, root: Path, user: pwd.struct_passwd, stale: list[str]) -> JitCache:
    nearest = next((path for path in (root, *root.parents) if path.exists()), Path("/"))
    status = nearest.stat()
    mine = status.st_uid == user.pw_uid
    bits = status.st_mode >> (6 if mine else 3 if status.st_gid == user.pw_gid else 0)
    return JitCache(
        str(root),
        user.pw_name,
        writable=user.pw_uid == 0 or bits & 0o3 == 0o3,
        owner=None if mine else _name(status.st_uid),
        file_system=file_system(sources, nearest),
        stale_locks=tuple(x for x in stale if Path(x).is_relative_to(os.path.realpath(root))),
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
