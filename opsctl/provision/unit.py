"""The systemd unit of `opsctl serve`, made from the configuration it serves from.

One service is one file, `opsctl.service`. Several engines on one host are instances of
`opsctl@.service`: the template holds what is the same for all, and a drop-in for each instance
what depends on its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import jinja2

from opsctl.config.schema import Config
from opsctl.provision import unit_paths, unit_times
from opsctl.provision.unit_words import command, word, words
from opsctl.system.resources import tree

UNITS = "/etc/systemd/system"
LOCK_DIR = "/run/lock/opsctl"
CREDENTIALS = "/etc/opsctl/credentials"
"""Where a secret `{credential: NAME}` lies: a file NAME that only root need be able to read."""
MARK = "# Managed by opsctl."
"""How every file begins that may be replaced."""
FINAL_CODES = (2, 4, 69, 78)
"""Exit codes that another start cannot cure (docs/reference/exit-codes.md)."""
OPTIONS = "OPSCTL_SERVE_OPTIONS"
NO_HOMES = frozenset({"/", "/nonexistent", "/dev/null"})
"""Home directories of users that have none: caches of compiled kernels need a real one."""


@dataclass(frozen=True)
class Service:
    """One service to be: which configuration, as whom, by which opsctl."""

    config: Config
    config_path: str
    state_dir: str
    user: str
    opsctl: tuple[str, ...]
    """Command that runs opsctl."""
    home: str | None = None
    """The user's home directory, when it is known."""
    instance: str = ""
    auto_spec: bool = False

    @property
    def name(self) -> str:
        """Name of the unit."""
        return f"opsctl@{self.instance}.service" if self.instance else "opsctl.service"


@dataclass(frozen=True)
class UnitFile:
    """A file to be, with its whole content."""

    path: str
    content: str


def render(service: Service) -> tuple[UnitFile, ...]:
    """The files of a service: unit, drop-in of an instance, and the lock they share.

    Raises UsageError when a path cannot be written in a unit.
    """
    shared = UnitFile("/etc/tmpfiles.d/opsctl.conf", _fill("opsctl-tmpfiles.conf", {}))
    if not service.instance:
        values = _common(service, service.config_path) | _own(service)
        unit = UnitFile(f"{UNITS}/{service.name}", _fill("opsctl.service", values))
        return unit, shared
    folder = str(PurePosixPath(service.config_path).parent)
    template = UnitFile(
        f"{UNITS}/opsctl@.service",
        _fill("opsctl@.service", _common(service, f"{folder}/%i.yaml")),
    )
    drop_in = UnitFile(_drop_in(service.instance), _fill("opsctl@instance.conf", _own(service)))
    return template, drop_in, shared


def _drop_in(instance: str) -> str:
    return f"{UNITS}/opsctl@{instance}.service.d/50-opsctl.conf"


def _common(service: Service, config_path: str) -> dict[str, object]:
    written = _instance_path(config_path) if service.instance else word(config_path)
    written = written.replace("$", "$$")
    options = f" ${OPTIONS}" if service.instance else " --auto-spec" if service.auto_spec else ""
    program = command(*service.opsctl)
    return {
        "serve": f"{program} serve --config {written}{options}",
        "reload": f"{program} reload --config {written}",
        "final_codes": " ".join(map(str, FINAL_CODES)),
        "drop_in_pattern": _drop_in("%i"),
    }


def _instance_path(path: str) -> str:
    """The path of a template's configuration: its one specifier stays one."""
    return word(path.removesuffix("%i.yaml") + "INSTANCE.yaml").replace("INSTANCE.yaml", "%i.yaml")


def _own(service: Service) -> dict[str, object]:
    config, home = service.config, service.home
    folders, writable = _directories(service)
    named = (service.config_path, service.state_dir, service.opsctl[0])
    homes = unit_paths.in_a_home((*unit_paths.read(config, home), *named, *writable))
    path = unit_paths.search_path(config, home)
    environment = [f"OPSCTL_STATE_DIR={service.state_dir}"]
    environment += [f"HOME={service.state_dir}"] if home in NO_HOMES else []
    environment += [f"CUDA_HOME={folder}" for folder in unit_paths.cuda_homes(config)[:1]]
    if service.instance:
        environment.append(f"{OPTIONS}={'--auto-spec' if service.auto_spec else ''}")
    return {
        "instance": service.instance,
        "config_path": service.config_path,
        "user": service.user,
        "path": word(f"PATH={path}"),
        "environment": [word(line) for line in environment],
        "environment_files": _environment_files(service),
        "credentials": [f"{name}:{CREDENTIALS}/{name}" for name in unit_paths.credentials(config)],
        "working_directory": word(service.state_dir),
        "directories": folders,
        "writable": words(f"-{path}" for path in writable),
        "protect_home": "read-only" if homes else "yes",
        "mounts": words(unit_paths.checkpoints(config, home)),
        "start_seconds": unit_times.start_seconds(config),
        "stop_seconds": unit_times.stop_seconds(config),
    }


def _environment_files(service: Service) -> list[str]:
    if not unit_paths.takes_environment_secrets(service.config):
        return []
    return [word(str(PurePosixPath(service.config_path).with_suffix(".env")))]


def _directories(service: Service) -> tuple[list[str], tuple[str, ...]]:
    """Settings that make systemd create and own folders, and what else must be writable."""
    lines, writable = [], []
    name = service.state_dir.removeprefix("/var/lib/")
    if name != service.state_dir:
        lines += [f"StateDirectory={word(name)}", "StateDirectoryMode=0700"]
    else:
        writable.append(service.state_dir)
    home = service.home
    homes = () if home is None or home in NO_HOMES else (home,)
    wanted = (*unit_paths.written(service.config, home), *homes)
    writable += [path for path in wanted if not unit_paths.below(path, service.state_dir)]
    return lines, tuple(dict.fromkeys(writable))


def _fill(name: str, values: Mapping[str, object]) -> str:
    templates = tree("templates")
    environment = jinja2.Environment(  # noqa: S701 - unit files are no HTML
        loader=jinja2.FunctionLoader(lambda file: templates.joinpath(file).read_text("utf-8")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(f"{name}.j2").render(
        {"mark": MARK, "lock_dir": LOCK_DIR, **values}
    )
