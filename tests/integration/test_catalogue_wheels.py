"""The catalogue beside SGLang itself: the wheels of every release, and their real parsers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from opsctl.profiles.catalogue import (
    KNOWN_VERSIONS,
    Catalogue,
    Flag,
    installed,
    shipped,
    site_packages_of,
)
from tests.support.sglang_cpu.environment import SglangEnvironment, UnavailableError
from tests.support.sglang_wheels import PARSERS, sources

TYPES = {
    "int": "int",
    "float": "float",
    "human_readable_int": "size",
    "loads": "json",
    "json_list_type": "json",
    "parse_cuda_graph_config_arg": "json",
}
UNEXPLAINED = {"forward-pass-metrics-ipc-name", "forward-pass-metrics-worker-id"}
"""Flags that SGLang 0.5.23 leaves out of its help on purpose."""


@pytest.fixture
def unpacked(tmp_path: Path) -> Iterator[Path]:
    """A folder for sources, gone after the test: a release has up to 50 MB of them."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def sources_or_skip(version: str, folder: Path) -> Path:
    try:
        return sources(version, folder)
    except UnavailableError as error:
        pytest.skip(f"no wheel of SGLang {version} here: {error}")


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_what_is_shipped_is_what_the_wheel_says(version: str, unpacked: Path) -> None:
    read = installed(sources_or_skip(version, unpacked))
    assert read.unread == ()
    assert read == shipped(version)


@pytest.mark.slow
@pytest.mark.sglang
@pytest.mark.parametrize(
    "versions",
    [
        pytest.param((KNOWN_VERSIONS[0], KNOWN_VERSIONS[-1]), id="oldest and newest"),
        pytest.param(KNOWN_VERSIONS[1:-1], id="between", marks=pytest.mark.extended),
    ],
)
def test_the_real_parser_has_exactly_the_flags_and_variables_of_the_catalogue(
    sglang_environment: SglangEnvironment, unpacked: Path, versions: Sequence[str]
) -> None:
    folders = {v: sources_or_skip(v, unpacked / v) for v in versions}
    for version, real in real_parsers(sglang_environment, folders).items():
        catalogue = shipped(version)
        flags = [entry for entry in real["flags"] if entry["options"]]
        for entry in flags:
            problems = differences(entry, catalogue.flags[entry["options"][0]])
            assert not problems, f"{version}: {entry['options']}: {problems}"
        known = {option for entry in flags for option in entry["options"]}
        assert known == catalogue.flags.keys(), version
        check_environment(version, real["environment"], catalogue)


def real_parsers(
    environment: SglangEnvironment, folders: Mapping[str, Path]
) -> Mapping[str, dict[str, Any]]:
    done = subprocess.run(
        [str(environment.python), str(PARSERS), *map(str, folders.values())],
        env={**os.environ, **environment.environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [line.get("error") for line in lines] == [None] * len(folders)
    assert [line["folder"] for line in lines] == [str(folder) for folder in folders.values()]
    return dict(zip(folders, lines, strict=True))


def differences(real: Mapping[str, Any], flag: Flag) -> dict[str, tuple[object, object]]:
    """What the real parser's action says, and the catalogue, where they are not the same."""
    optional = real["action"] == "BooleanOptionalAction"
    kind = "optional-switch" if optional else "switch" if real["nargs"] == 0 else "value"
    value = kind == "value"
    facts: dict[str, tuple[object, object]] = {
        "options": (set(real["options"]), set(flag.spellings)),
        "kind": (kind, flag.kind),
        "type": (TYPES.get(real["type"], "str") if value else None, flag.type),
        "many": (value and real["nargs"] in {"*", "+"}, flag.many),
        "bare": (value and real["nargs"] in {"*", "?"}, flag.bare),
        "choices": (
            real["choices"] and sorted(real["choices"]),
            sorted(flag.choices or ()) or None,
        ),
        "required": (real["required"], flag.required),
    }
    if value:
        facts["default"] = (text(real["default"]), flag.default)
    return {key: pair for key, pair in facts.items() if pair[0] != pair[1]}


def text(value: object) -> str | None:
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return None if value is None else str(value)


def check_environment(version: str, real: Mapping[str, object], catalogue: Catalogue) -> None:
    assert real.keys() <= catalogue.environment.keys(), version
    for name, default in real.items():
        said = text(default)
        # Some are worked out by a function, or below the home folder.
        told = said is not None and not said.startswith("<") and str(Path.home()) not in said
        assert catalogue.environment[name] == (said if told else None), f"{version}: {name}"


@pytest.mark.sglang
def test_help_of_the_real_server_names_the_flags_and_choices_of_its_installation(
    sglang_environment: SglangEnvironment,
) -> None:
    site_packages = site_packages_of(str(sglang_environment.python))
    assert site_packages is not None
    catalogue = installed(site_packages)
    assert catalogue == shipped("0.5.23")
    done = subprocess.run(
        [str(sglang_environment.python), "-m", "sglang.launch_server", "--help"],
        env={**os.environ, **sglang_environment.environment, "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    printed = dict(help_entries(done.stdout))
    assert printed.keys() == catalogue.flags.keys() - UNEXPLAINED
    for option, choices in printed.items():
        assert choices == set(catalogue.flags[option].choices or ()), option


def help_entries(said: str) -> Iterator[tuple[str, set[str]]]:
    """Every option that argparse's help explains, with its choices."""
    for line in said.splitlines():
        if line.startswith("  -"):
            words = line[2:].partition("  ")[0]
            listed = re.search(r"\{([^}]*)\}", words)
            choices = set(listed[1].split(",")) if listed else set()
            for option in re.findall(r"(?<!\S)--([a-z0-9_-]+)", words):
                yield option, choices
