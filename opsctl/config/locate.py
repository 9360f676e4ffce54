"""Which files make up the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opsctl.errors import ConfigError, Problem

_HINT = "write one with `opsctl config init`, or name one with --config"


def candidates(environment: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """Places looked at, in order, when neither --config nor OPSCTL_CONFIG names a file."""
    home = environment.get("HOME")
    xdg = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    user = (Path(xdg) / "opsctl/opsctl.yaml",) if xdg else ()
    return (cwd / "opsctl.yaml", *user, Path("/etc/opsctl/opsctl.yaml"))


def locate(explicit: str | None, *, environment: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """The main file and, in name order, the `conf.d/*.yaml` beside it.

    Raises ConfigError when there is none.
    """
    named = explicit or environment.get("OPSCTL_CONFIG")
    if named:
        main = cwd / named
        if not main.exists():
            source = "--config" if explicit else "OPSCTL_CONFIG"
            what = f"no such file (named by {source})"
            raise ConfigError([Problem(str(main), 1, 1, "", what)], hint=_HINT)
        return _with_drop_ins(main)
    places = candidates(environment, cwd)
    for place in places:
        if place.exists():
            return _with_drop_ins(place)
    looked = ", ".join(map(str, places))
    raise ConfigError(
        [Problem(str(places[0]), 1, 1, "", f"no configuration found; looked at {looked}")],
        hint=_HINT,
    )


def _with_drop_ins(main: Path) -> tuple[Path, ...]:
    directory = main.parent / "conf.d"
    try:
        names = sorted(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return (main,)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise ConfigError([Problem(str(directory), 1, 1, "", what)]) from None
    chosen = (name for name in names if name.endswith(".yaml") and not name.startswith("."))
    return (main, *(directory / name for name in chosen))
