"""Reads engine environments from their files; nothing of them is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from opsctl.config.names import expand_home
from opsctl.config.schema import Config
from opsctl.doctor.host import Stack
from opsctl.doctor.read_programs import release_of
from opsctl.doctor.sources import Sources, Subject, text
from opsctl.errors import OpsctlError
from opsctl.patching import preflight
from opsctl.patching.apply import look
from opsctl.patching.environment import locate
from opsctl.patching.series import load
from opsctl.profiles import catalogue as catalogues
from opsctl.profiles.catalogue import Catalogue, CatalogueError

_INFO = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)\.dist-info")
_CUDA = re.compile(r"^cuda(?:\s*:[^=\n]*)?\s*=\s*(?:'([\d.]*)'|\"([\d.]*)\"|None)", re.MULTILINE)


def pythons(sources: Sources, subject: Subject) -> tuple[str, ...]:
    """Return the interpreters that are asked for: the named one, or those of the profiles."""
    if subject.python is not None:
        return (expand_home(subject.python, sources.environment.get("HOME")),)
    if subject.config is None:
        return ()
    return tuple(sorted(preflight.interpreters(subject.config)))


def stacks(sources: Sources, subject: Subject) -> tuple[Stack, ...]:
    """Read every environment."""
    return tuple(_stack(python, subject.config) for python in pythons(sources, subject))


def _stack(python: str, config: Config | None) -> Stack:
    root = catalogues.site_packages_of(python)
    if root is None:
        return Stack(python, trouble=f"{python}: no Python environment there")
    catalogue, trouble = _catalogue(root)
    states, required, unlooked = _patches(python, config)
    return Stack(
        python,
        trouble=trouble or unlooked,
        sglang=None if catalogue is None else catalogue.version,
        packages=dict(packages(path.name for path in root.glob("*.dist-info"))),
        pins={} if catalogue is None else catalogue.pins,
        models=frozenset() if catalogue is None else catalogue.models,
        torch_cuda=parse_torch_cuda(text(root / "torch/version.py") or ""),
        nvrtc=tuple(sorted(path.name for path in root.glob("nvidia/*/lib/libnvrtc*.so*"))),
        ptxas=release_of(root / "triton/backends/nvidia/bin/ptxas"),
        patches=states,
        required=required,
    )


def _catalogue(root: Path) -> tuple[Catalogue | None, str | None]:
    try:
        return catalogues.installed(root), None
    except CatalogueError as error:
        return None, error.message


def _patches(
    python: str, config: Config | None
) -> tuple[dict[str, str], frozenset[str], str | None]:
    try:
        environment = locate(python)
        found = look(load(), environment, running=lambda _: None)
        required = preflight.required(config, environment) if config else set()
    except (OpsctlError, OSError) as error:
        return {}, frozenset(), str(error)
    states: dict[str, str] = {x.patch.name: x.state for x in found}
    return states if environment.packages else {}, frozenset(required), None


def packages(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield name as pip compares it, and version, of folders such as torch-2.9.0.dist-info."""
    for entry in names:
        if found := _INFO.fullmatch(entry):
            yield re.sub(r"[-_.]+", "-", found["name"]).lower(), found["version"]


def parse_torch_cuda(content: str) -> str | None:
    """Find the CUDA version in torch/version.py; empty for none, None when it does not tell."""
    found = _CUDA.search(content)
    return None if found is None else found[1] or found[2] or ""
