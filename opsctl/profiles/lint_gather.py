"""Collects what the lint needs: the installed SGLang's catalogue and the files a profile names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.config.names import expand_home
from opsctl.config.schema import Config, LaunchProfile
from opsctl.profiles import catalogue as catalogues
from opsctl.profiles import checkpoint as checkpoints
from opsctl.profiles.catalogue import Catalogue
from opsctl.profiles.catalogue_locate import sources_root
from opsctl.profiles.flags import rendered
from opsctl.profiles.lint import Finding, Host, lint, needs_history, note, simulated
from opsctl.profiles.lint_model import Patches
from opsctl.profiles.lint_rules_environment import DIRECTORIES, FILES

NO_PATCHES = Patches()
NEWEST = catalogues.KNOWN_VERSIONS[-1]
_ADAPTIVE = "speculative-adaptive-config"


@dataclass(frozen=True)
class Gpus:
    """The GPUs the lint is for."""

    compute_capability: tuple[int, int] | None = None
    count: int | None = None


def installed(profile: LaunchProfile) -> Catalogue | None:
    """The SGLang of the profile's interpreter; None when there is none.

    Raises CatalogueError when there is one that cannot be read.
    """
    python = expand_home(profile.python or "python3", os.environ.get("HOME"))
    found = catalogues.site_packages_of(python)
    if found is None or sources_root(found) is None:
        return None
    return catalogues.installed(found)


def check(
    name: str,
    profile: LaunchProfile,
    gpus: Gpus,
    *,
    catalogue: Catalogue | None = None,
    config: Config | None = None,
    here: bool | None = None,
    patches: Patches = NO_PATCHES,
) -> tuple[Finding, ...]:
    """Lint one profile against the SGLang it will run in, or the given one, and its patches.

    Where none is found, the newest known release is assumed and a finding says so. `here` says
    whether the engine will run on this machine; None takes that from its interpreter and model.
    """
    if profile.engine == "simulated":
        return (simulated(name),)
    notes: list[Finding] = []
    own = installed(profile) if catalogue is None else None
    used = catalogue or own
    if used is None:
        used = catalogues.shipped(NEWEST)
        what = f"no SGLang found for `python`: {NEWEST}, the newest known release, is assumed"
        notes.append(note("assumed-release", name, "python", what))
    host = gather(profile, gpus, here=here if here is not None else _here(profile, own))
    host = replace(host, patches=patches)
    others = _history() if needs_history(profile, used) else ()
    return (*notes, *lint(name, profile, used, host, config=config, others=others))


def _history() -> tuple[Catalogue, ...]:
    return tuple(map(catalogues.shipped, catalogues.KNOWN_VERSIONS))


def _here(profile: LaunchProfile, own: Catalogue | None) -> bool:
    return own is not None or _folder(profile.model) is not None


def gather(profile: LaunchProfile, gpus: Gpus, *, here: bool) -> Host:
    """Read the checkpoints and files the profile names."""
    target, draft = _checkpoint(profile.model), _checkpoint(profile.draft_model or "")
    host = Host(
        compute_capability=gpus.compute_capability,
        gpu_count=gpus.count,
        checkpoint=target.config,
        quantization=target.quantization,
        missing_shards=target.missing,
        draft=draft.config,
        missing_draft_shards=draft.missing,
        absent=frozenset(_absent(profile)),
        here=here,
    )
    return _with_adaptive(host, profile)


def _checkpoint(model: str) -> checkpoints.Checkpoint:
    folder = _folder(model)
    return checkpoints.Checkpoint() if folder is None else checkpoints.read(folder)


def _folder(model: str) -> Path | None:
    """The model's directory; None for a hub's name and for what is not there."""
    path = _path(model) if model and _is_path(model) else None
    return path if path is not None and _exists(path, directory=True) else None


def _is_path(text: str) -> bool:
    """As `serve` tells a path from a name such as `org/model`."""
    return text.startswith(("/", "./", "../", "~"))


def _path(text: str) -> Path:
    return Path(expand_home(text, os.environ.get("HOME")))


def _exists(path: Path, *, directory: bool = False) -> bool:
    try:
        return path.is_dir() if directory else path.exists()
    except (OSError, ValueError):
        return False


def _absent(profile: LaunchProfile) -> Iterator[str]:
    for key in ("model", "draft_model"):
        value: str | None = getattr(profile, key)
        if value and _is_path(value) and _folder(value) is None:
            yield key
    for name in (*FILES, *DIRECTORIES):
        value = _text(profile.environment.get(name))
        if value and not _exists(_path(value), directory=name in DIRECTORIES):
            yield f"environment.{name}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _with_adaptive(host: Host, profile: LaunchProfile) -> Host:
    value = next((v for k, v in profile.flags.items() if k.replace("_", "-") == _ADAPTIVE), None)
    if not rendered(value) or not isinstance(value, str):
        return host
    path = _path(value)
    if not _exists(path):
        return replace(host, adaptive_problem=f"{value} does not exist")
    content = checkpoints.read_json(path)
    if content is None:
        return replace(host, adaptive_problem=f"{value} is not a readable JSON file")
    return replace(host, adaptive=content)


def in_order(findings: Sequence[Finding], positions: Mapping[str, str]) -> tuple[Finding, ...]:
    """The findings with their positions, the gravest first within a profile."""
    rank = {"error": 0, "warning": 1, "info": 2}
    placed = [replace(x, at=_at(x, positions)) for x in findings]
    return tuple(sorted(placed, key=lambda x: rank[x.severity]))


def _at(finding: Finding, positions: Mapping[str, str]) -> str | None:
    """Where the key was written, or the nearest key above it."""
    keys = (finding.key, f"profiles.{finding.profile}.{finding.key}")
    key = keys[0] if finding.key.startswith(("auto_spec.", "serve.")) else keys[1]
    while key and key not in positions:
        key = key.rpartition(".")[0]
    return positions.get(key)
