"""Whatever the file holds: a configuration or a ConfigError, and positions inside the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.config.fields import children
from opsctl.config.json_schema import json_schema
from opsctl.config.load import load, load_text
from opsctl.errors import ConfigError

KEYS = sorted(
    {
        key
        for path in (
            (),
            ("serve",),
            ("auto_spec",),
            ("profiles", "x"),
            ("serve", "gateway"),
            ("serve", "gateway", "hold"),
            ("profiles", "x", "timeouts"),
        )
        for key in children(path)
    }
)
WORDS = st.sampled_from(
    [*KEYS, "a", "b", "env", "file", "<<", "1", "off", "30s", "8MiB", "${A}", "${", "sglang", ""]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=25,
)
TREES = st.fixed_dictionaries(
    {},
    optional={
        "profiles": st.dictionaries(WORDS, VALUES, max_size=3) | VALUES,
        "serve": st.dictionaries(WORDS, VALUES, max_size=4),
        "auto_spec": st.dictionaries(WORDS, VALUES, max_size=4),
        "state_dir": VALUES,
    },
)
MARKUP = st.text(alphabet="ab:-?[]{}#&*!|>'\"%@`\\\n\r\t \x85\u2028é,0", max_size=60)


def positions_are_inside(error: ConfigError, text: str) -> None:
    lines = re.split(r"\r\n|\r|\n", text)
    assert error.problems
    for problem in error.problems:
        assert 1 <= problem.line <= len(lines), problem
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1, problem
        assert problem.what


def accept_or_complain(text: str) -> None:
    try:
        load_text(text, name="f", environment={"A": "1"})
    except ConfigError as error:
        positions_are_inside(error, text)


@given(MARKUP | st.text(max_size=40))
@settings(max_examples=400, deadline=None)
def test_any_text(text: str) -> None:
    accept_or_complain(text)


@given(TREES)
@settings(max_examples=300, deadline=None)
def test_any_tree_of_known_and_unknown_keys(tree: Any) -> None:
    accept_or_complain(yaml.safe_dump(tree))


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_bytes(tmp_path_factory: Any, raw: bytes) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(raw)
    try:
        load([path], environment={})
    except ConfigError as error:
        positions_are_inside(error, raw.decode("utf-8-sig", errors="replace"))


PROFILES = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "flags": st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=3) | st.none(),
        "environment": st.dictionaries(st.sampled_from("ABCD"), VALUES, max_size=3) | st.none(),
        "timeouts": st.fixed_dictionaries({}, optional={"drain": VALUES, "stop": VALUES}),
        "python": VALUES,
        "expect_log": VALUES,
    },
)
VALIDATOR = jsonschema.Draft202012Validator(json_schema())


@given(PROFILES)
@settings(max_examples=300, deadline=None)
def test_what_the_loader_accepts_the_editor_accepts_too(profile: Any) -> None:
    tree = {"profiles": {"p": profile}}
    try:
        load_text(yaml.safe_dump(tree), name="f", environment={"A": "1"})
    except ConfigError:
        return
    assert list(VALIDATOR.iter_errors(tree)) == []
