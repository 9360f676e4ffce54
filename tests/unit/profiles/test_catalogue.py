"""The shipped catalogue, argparse's rules of abbreviation, an interpreter's packages."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.profiles import catalogue_locate
from opsctl.profiles.catalogue import (
    DATA,
    KNOWN_VERSIONS,
    Catalogue,
    CatalogueError,
    shipped,
    site_packages_of,
)
from opsctl.profiles.catalogue_shipped import decode, encode

OLDEST, NEWEST = KNOWN_VERSIONS[0], KNOWN_VERSIONS[-1]


# --- what is shipped -----------------------------------------------------------------------------


def test_the_data_are_of_all_known_versions_small_and_with_a_notice() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    assert tuple(data["versions"]) == KNOWN_VERSIONS
    assert len(set(data["wheels"])) == len(KNOWN_VERSIONS)
    assert DATA.stat().st_size < 200_000
    assert "Apache-2.0" in data["notice"]
    assert "object at 0x" not in DATA.read_text(encoding="utf-8")


def test_an_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(CatalogueError, match=r"0\.5\.8 .*known are 0\.5\.9, .*0\.5\.23"):
        shipped("0.5.8")


@pytest.mark.parametrize(
    ("version", "count"), [("0.5.9", 341), ("0.5.14", 433), ("0.5.20", 513), ("0.5.23", 559)]
)
def test_the_number_of_spellings_is_that_of_the_release(version: str, count: int) -> None:
    assert len(shipped(version).flags.keys() - {"help"}) == count


def test_facts_that_operators_trip_over() -> None:
    old, new = shipped(OLDEST), shipped(NEWEST)
    assert old.flags["tp-size"] is old.flags["tensor-parallel-size"]
    assert (new.flags["tp-size"].name, new.flags["tp-size"].default) == ("tp-size", "1")
    assert old.flags["speculative-algorithm"].choices == (
        "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"
    )  # fmt: skip
    assert new.flags["speculative-algorithm"].choices is None
    assert "cuda-graph-max-bs" in shipped("0.5.19").flags
    assert shipped("0.5.19").flags["cuda-graph-max-bs"].deprecated == "--cuda-graph-max-bs-decode"
    assert "cuda-graph-max-bs" not in shipped("0.5.20").flags
    assert new.flags["no-enable-tf32-matmul"].kind == "optional-switch"
    assert new.flags["lora-paths"].many
    assert new.flags["mem-fraction-static"].type == "float"
    assert shipped("0.5.18").flags["enable-expert-distribution-metrics"].refused
    assert "kimi_k2" in (new.flags["tool-call-parser"].choices or ())
    assert new.pins["flashinfer-python"] == "==0.7.2"
    assert old.pins["flashinfer-python"] == "==0.6.3"
    assert "KimiK25ForConditionalGeneration" in old.models
    assert "Eagle3DeepseekV2ForCausalLM" in new.models - old.models
    assert old.environment["SGLANG_ENABLE_SPEC_V2"] == "false"
    assert "SGLANG_ENABLE_SPEC_V2" not in new.environment
    assert "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE" in new.environment.keys() - old.environment.keys()
    assert new.deprecated_environment["SGLANG_ENABLE_CP_V2"]
    assert "SGLANG_ENABLE_CP_V2" not in new.environment


def test_what_changed_went_away_and_came_back_survives_writing_and_reading() -> None:
    first = shipped("0.5.9")
    flag = replace(first.flags["port"], where="sglang/elsewhere.py:7", default="1")
    second = replace(
        first,
        version="0.5.10",
        flags={**first.flags, "port": flag},
        environment={},
        models=frozenset({"A"}),
        unread=("choices of --x",),
    )
    third = replace(first, version="0.5.11")
    text = encode([first, second, third], wheels=["a", "b", "c"])
    assert [decode(text, v) for v in ("0.5.9", "0.5.10", "0.5.11")] == [first, second, third]
    assert encode([first, second, third], wheels=["a", "b", "c"]) == text


# --- argparse's rules ----------------------------------------------------------------------------


class RefusalError(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RefusalError(message)


@cache
def parser(version: str) -> Parser:
    """A real argparse with the catalogue's options; each puts its flag's name into `got`."""
    made = Parser(add_help=False)
    for flag in {f.name: f for f in shipped(version).flags.values()}.values():
        options = [f"--{spelling}" for spelling in flag.spellings]
        made.add_argument(*options, action="append_const", dest="got", const=flag.name)
    return made


def by_argparse(version: str, option: str) -> tuple[str, object]:
    try:
        got = parser(version).parse_args([f"--{option}"]).got
    except RefusalError as refusal:
        said = str(refusal)
        if "ambiguous" not in said:
            return ("unknown", None)
        return (
            "ambiguous",
            {s.removeprefix("--") for s in said.partition("match ")[2].split(", ")},
        )
    return ("found", got[0])


def by_catalogue(catalogue: Catalogue, option: str) -> tuple[str, object]:
    found = catalogue.resolve(option)
    if found.flag is not None:
        assert found.kind == ("exact" if option in catalogue.flags else "abbreviation")
        return ("found", found.flag.name)
    return (found.kind, set(found.candidates) if found.candidates else None)


@st.composite
def options(draw: st.DrawFn, version: str) -> str:
    spelling = draw(st.sampled_from(sorted(shipped(version).flags)))
    kept = draw(st.integers(1, len(spelling)))
    return spelling[:kept] + draw(st.sampled_from(["", "", "", "-", "x", "s"]))


@given(options(OLDEST))
def test_options_mean_what_argparse_makes_of_them_in_the_oldest(option: str) -> None:
    assert by_catalogue(shipped(OLDEST), option) == by_argparse(OLDEST, option)


@given(options(NEWEST))
def test_options_mean_what_argparse_makes_of_them_in_the_newest(option: str) -> None:
    assert by_catalogue(shipped(NEWEST), option) == by_argparse(NEWEST, option)


def test_names_of_one_flag_that_begin_alike_are_ambiguous_too() -> None:
    flag = replace(shipped(NEWEST).flags["tp-size"], name="rank-count", aliases=("rank-size",))
    made = Parser(add_help=False)
    made.add_argument("--rank-count", "--rank-size")
    with pytest.raises(RefusalError, match="ambiguous"):
        made.parse_args(["--rank", "8"])
    catalogue = replace(shipped(NEWEST), flags=dict.fromkeys(flag.spellings, flag))
    assert catalogue.resolve("rank").kind == "ambiguous"
    assert catalogue.resolve("rank").candidates == ("rank-count", "rank-size")
    assert catalogue.resolve("rank-s").flag is flag


def test_what_broke_in_0_5_20_is_seen() -> None:
    assert shipped("0.5.19").resolve("--cuda-graph-max-bs").kind == "exact"
    broken = shipped("0.5.20").resolve("--cuda-graph-max-bs")
    assert broken.kind == "ambiguous"
    assert broken.candidates == ("cuda-graph-max-bs-decode", "cuda-graph-max-bs-prefill")
    assert shipped(NEWEST).resolve("--tp").candidates == ("tp-size",)
    assert shipped(NEWEST).resolve("--pp").kind == "ambiguous"


@pytest.mark.parametrize("option", ["", "-", "--", "-tp", "tp_size", "---tp", "no such", "tp=8"])
def test_what_no_flag_begins_with_is_unknown(option: str) -> None:
    found = shipped(NEWEST).resolve(option)
    assert (found.kind, found.flag, found.candidates) == ("unknown", None, ())


# --- where packages are --------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """A virtual environment by its looks, with a Python that refuses to run."""
    site_packages = tmp_path / "lib/python3.12/site-packages"
    (site_packages / "sglang").mkdir(parents=True)
    (site_packages / "sglang-0.5.23.dist-info").mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 7\n")
    python.chmod(0o755)
    return tmp_path


def test_the_packages_of_a_virtual_environment_are_found_without_running_it(
    environment: Path,
) -> None:
    wanted = environment / "lib/python3.12/site-packages"
    assert site_packages_of(str(environment)) == wanted
    assert site_packages_of(str(environment / "bin/python")) == wanted
    assert site_packages_of(str(wanted)) == wanted


def test_a_virtual_environment_without_sglang_is_not_taken_for_its_base(
    environment: Path,
) -> None:
    wanted = environment / "lib/python3.12/site-packages"
    (wanted / "sglang-0.5.23.dist-info").rmdir()
    assert site_packages_of(str(environment / "bin/python")) == wanted


def test_an_interpreter_elsewhere_is_asked_in_isolation(tmp_path: Path) -> None:
    site_packages = tmp_path / "dist-packages"
    site_packages.mkdir()
    python = tmp_path / "usr/bin/python3"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$1 $2" = "-I -S" ] && echo "{site_packages}"\n')
    python.chmod(0o755)
    assert site_packages_of(str(python)) == site_packages


def test_an_interpreter_that_hangs_or_does_not_exist_has_no_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_locate, "DEADLINE", 0.2)
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    began = time.monotonic()
    assert site_packages_of(str(python)) is None
    assert time.monotonic() - began < 30
    assert site_packages_of(str(tmp_path / "nothing")) is None
    assert site_packages_of(str(tmp_path / "bin")) is None


def test_this_interpreter_is_told_the_packages_it_uses() -> None:
    found = site_packages_of(sys.executable)
    said = subprocess.run(
        [sys.executable, "-c", "import packaging; print(packaging.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert found is not None
    assert Path(said.strip()).is_relative_to(found)
