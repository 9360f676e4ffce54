"""From YAML files to the frozen configuration, with a position for every complaint.

The way: files -> trees (tree) -> one tree (merge) -> profiles without `extends` (extends) ->
models (validate) -> rules between keys (rules). Problems of all steps are collected, sorted by
position and raised at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from opsctl.config.extends import flags_by_name, resolve_profiles
from opsctl.config.merge import merge
from opsctl.config.rules import apply_rules, with_single_profile
from opsctl.config.schema import Config
from opsctl.config.tree import LINES, MAX_BYTES, Node, Origin, Table, parse
from opsctl.config.validate import validate
from opsctl.errors import ConfigError, Problem

__all__ = ["Loaded", "Origin", "demo", "load", "load_text"]


@dataclass(frozen=True)
class Loaded:
    """A checked configuration and where its values were written."""

    config: Config
    origins: Mapping[str, Origin]
    """Dotted key path to the position of its value; values inherited by `extends` keep theirs."""
    files: tuple[Path, ...]
    warnings: tuple[Problem, ...] = ()
    """What works, but is probably not meant."""


def load(paths: Sequence[Path], *, environment: Mapping[str, str]) -> Loaded:
    """Read the files in order, later ones over earlier ones.

    Raises ConfigError with every problem of all files.
    """
    problems: list[Problem] = []
    texts = [(str(path), _read(path, problems)) for path in paths]
    return _load(texts, environment, problems, tuple(paths))


def load_text(text: str, *, name: str, environment: Mapping[str, str]) -> Loaded:
    """Read one configuration from text; `name` stands for the file in messages."""
    return _load([(name, text)], environment, [], ())


def demo() -> Loaded:
    """The packaged demo configuration; it takes nothing from the environment."""
    resource = files("opsctl.config").joinpath("demo.yaml")
    return load_text(resource.read_text(encoding="utf-8"), name="demo.yaml", environment={})


def _read(path: Path, problems: list[Problem]) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problems.append(Problem(str(path), 1, 1, "", f"cannot be read: {reason}"))
        return ""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(raw) > MAX_BYTES:
            return raw.decode("utf-8-sig", errors="replace")
        before = LINES.split(raw[: error.start].decode("utf-8-sig"))
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        problems.append(Problem(str(path), len(before), len(before[-1]) + 1, "", what))
        return ""


def _load(
    texts: Sequence[tuple[str, str]],
    environment: Mapping[str, str],
    problems: list[Problem],
    paths: tuple[Path, ...],
) -> Loaded:
    root: Node = Table({}, Origin(texts[0][0] if texts else "", 1, 1))
    for name, text in texts:
        tree, wrong = parse(text, name, environment)
        problems += wrong
        root = merge(root, flags_by_name(tree, problems))
    assert isinstance(root, Table)  # noqa: S101 - parse returns tables only
    # Without its file, half a tree would only yield problems that follow from the first one.
    if problems and not root.entries:
        raise ConfigError(_in_order(problems, texts))
    root = resolve_profiles(root, problems)
    config, wrong = validate(root)
    # What could not be read is not complained about a second time for having the wrong type.
    told = {(p.file, p.line, p.column) for p in problems}
    problems += [p for p in wrong if (p.file, p.line, p.column) not in told]
    origins = dict(_origins(root, ()))
    warnings: list[Problem] = []
    if config is not None:
        config = with_single_profile(config)
        wrong, warnings = apply_rules(config, origins)
        problems += wrong
    if problems or config is None:
        raise ConfigError(_in_order(problems, texts))
    return Loaded(config, origins, paths, tuple(_in_order(warnings, texts)))


def _in_order(problems: Sequence[Problem], texts: Sequence[tuple[str, str]]) -> list[Problem]:
    order = {name: index for index, (name, _) in enumerate(texts)}
    # Inherited values are checked once per heir; one complaint per place and reason is enough.
    unique = {(p.file, p.line, p.column, p.what): p for p in reversed(problems)}
    return sorted(unique.values(), key=lambda p: (order.get(p.file, -1), p.line, p.column, p.key))


def _origins(node: Node, path: tuple[str, ...]) -> Iterator[tuple[str, Origin]]:
    yield ".".join(path), node.origin
    if isinstance(node, Table):
        for key, entry in node.entries.items():
            yield from _origins(entry.node, (*path, key))
