"""Every complaint says where, which key, and what; all of them at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opsctl.config.load import Loaded, load, load_text
from opsctl.errors import ConfigError

GOOD = """\
profiles:
  one:
    model: /models/m
"""


def problems(text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, name="f.yaml", environment=environment)
    assert caught.value.exit_code == 78
    return [str(problem) for problem in caught.value.problems]


def loaded(text: str, **environment: str) -> Loaded:
    return load_text(text, name="f.yaml", environment=environment)


def test_a_minimal_file_is_enough_and_its_only_profile_is_served() -> None:
    config = loaded(GOOD).config
    assert config.serve.profile == "one"
    assert config.profiles["one"].engine == "sglang"


def test_all_problems_are_reported_at_once_in_file_order() -> None:
    found = problems(
        "profiles:\n  one:\n    modle: x\n    timeouts: {start: 5}\nserve:\n  listne: a\nother: 1\n"
    )
    assert [line.split(": ")[0] for line in found] == [
        "f.yaml:3:5",
        "f.yaml:4:23",
        "f.yaml:6:3",
        "f.yaml:7:1",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "serve: {listne: x}\n", "f.yaml:4:9: serve.listne: unknown key (did you mean li"),
        (GOOD + "listen: x\n", "f.yaml:4:1: listen: unknown key here (did you mean serve.listen?)"),
        (
            GOOD + "serve: {listen: 8000}\n",
            '4:17: serve.listen: must be text, not a number; write "127',
        ),
        (GOOD + "serve: {listen: [a]}\n", "4:17: serve.listen: must be text, not a list"),
        (GOOD + "serve: {listen: here}\n", "4:17: serve.listen: must be HOST:PORT"),
        (GOOD + "serve: {engine_port: 70000}\n", "4:22: serve.engine_port: must be at most 65535"),
        (
            GOOD + "serve: 3\n",
            "4:8: serve: must be a mapping (lines of `key: value`), not a number",
        ),
        (GOOD + "auto_spec: {observe: 1}\n", "4:22: auto_spec.observe: must be true or false, not"),
        (
            GOOD + "    engine: sglan\n",
            "4:13: profiles.one.engine: must be one of sglang, simulated (",
        ),
        (GOOD + "    expect_log: x\n", "4:17: profiles.one.expect_log: must be a list, not text"),
        (GOOD + "    timeouts: {stop: 90}\n", "4:22: profiles.one.timeouts.stop: 90 is not a dur"),
        (
            GOOD + "    timeouts: {stop: 1.5}\n",
            "4:22: profiles.one.timeouts.stop: 1.5 is not a dur",
        ),
        (
            GOOD + "    environment: {A: true}\n",
            "4:22: profiles.one.environment.A: a variable's val",
        ),
        (
            GOOD + "    environment: {A B: x}\n",
            "4:19: profiles.one.environment.A B: not a name for",
        ),
        (GOOD + "    flags: {a: [[1]]}\n", "4:16: profiles.one.flags.a: a flag is true, a number,"),
        (
            GOOD + "    flags: {--tp-size: 8}\n",
            "4:13: profiles.one.flags.--tp-size: write it without",
        ),
        (GOOD + "    flags: {a-b: 1, a_b: 2}\n", "4:21: profiles.one.flags.a_b: the same flag as"),
        (
            GOOD + "  two words: {model: x}\n",
            "4:3: profiles.two words: a profile's name is up to 64",
        ),
        ("", "f.yaml:1:1: profiles: at least one launch profile is needed"),
        ("[1]\n", "f.yaml:1:1: must be a mapping"),
        ("a: [\n", "f.yaml:2:1: not YAML"),
        ("a:\n\tb: 1\n", "f.yaml:2:1: a tab indents this line; YAML wants spaces"),
        (GOOD + "---\na: 1\n", "f.yaml:4:1: a second document starts here"),
        (GOOD + "serve: {listen: \x07}\n", "f.yaml:4:17: character U+0007 is not allowed here"),
        (GOOD + 'serve: {listen: "\\0"}\n', "f.yaml:4:17: serve.listen: NUL and surrogate"),
        (GOOD + "serve: !!str x\n", "f.yaml:4:8: serve: tags (`!`, `!!`) are not used here"),
        (GOOD + "serve: {<<: {a: 1}}\n", "f.yaml:4:9: serve.<<: merge keys are not supported"),
        (GOOD + "serve: *nowhere\n", "f.yaml:4:8: serve: alias *nowhere has no finished anchor"),
        (GOOD + "serve: &a {b: *a}\n", "f.yaml:4:15: serve.b: alias *a has no finished anchor"),
        (GOOD + "? [a]\n: 1\n", "f.yaml:4:3: a key must be a word"),
        (GOOD + "1: 2\n", "f.yaml:4:1: 1: this key is not text to YAML; put it in quotes"),
    ],
)
def test_a_problem_names_position_key_and_remedy(text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(text)), problems(text)


@pytest.mark.parametrize(
    "trap",
    [
        *("yes", "no", "on", "off", "Off", "y", "N", "012", "0x1F", "0b1", "1_000", "12:30"),
        *("2026-01-31", "2026-01-31T10:00:00Z", ".5", "5.", "+5", ".inf", ".nan", "="),
        *("99999999999999999999", "1e999"),
    ],
)
def test_what_yaml_versions_read_differently_is_refused_once_and_quotes_help(trap: str) -> None:
    [found] = problems(f"{GOOD}    served_name: {trap}\n")
    assert found.startswith("f.yaml:4:18: profiles.one.served_name: ")
    assert loaded(f'{GOOD}    served_name: "{trap}"\n').config.profiles["one"].served_name == trap


def test_a_trap_is_not_complained_about_a_second_time_for_its_type() -> None:
    [found] = problems(f"{GOOD}auto_spec: {{dwell: 12:30}}\n")
    assert "base 60" in found


@pytest.mark.parametrize("word", ["auto", "v1.2.3", "1.2.3", "127.0.0.1:80", "e5", "a:b", "12:99x"])
def test_ordinary_words_stay_text(word: str) -> None:
    assert loaded(f"{GOOD}    served_name: {word}\n").config.profiles["one"].served_name == word


def test_a_duplicate_key_is_refused_and_names_the_first() -> None:
    [found] = problems(f"{GOOD}serve: {{}}\nserve: {{}}\n")
    assert found == "f.yaml:5:1: serve: written twice; the first is in line 4"


def test_a_section_that_is_only_named_counts_as_left_out() -> None:
    assert loaded(f"{GOOD}    flags:\nserve:\nauto_spec:\n").config.profiles["one"].flags == {}


def test_depth_and_aliases_are_bounded() -> None:
    assert "nested deeper than 32 levels" in problems("a: " + "[" * 40 + "]" * 40)[0]
    assert "nest" in problems("a: " + "[" * 50_000)[0]
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)]
    bomb = "l0: &l0 [x, x, x, x, x, x, x, x, x]\n" + "\n".join(levels)
    assert any("more than 20000 values" in problem for problem in problems(bomb))


@pytest.mark.parametrize(
    "literal", ["sk-very-secret", "[sk-very-secret]", "{key: sk-very-secret}", "${KEY}"]
)
def test_a_literal_secret_is_refused_without_repeating_it(literal: str) -> None:
    text = f"{GOOD}serve:\n  gateway:\n    api_key: {literal}\n"
    [found] = problems(text, KEY="sk-very-secret")
    assert found.startswith("f.yaml:6:14: serve.gateway.api_key: a secret is never written here")
    assert "very-secret" not in found


def test_variables_are_replaced_and_a_missing_one_has_a_position() -> None:
    text = GOOD + '    served_name: "${A}-${B:-b}-$$-$x"\nserve:\n  engine_port: ${PORT:-31}\n'
    config = loaded(text, A="a").config
    assert config.profiles["one"].served_name == "a-b-$-$x"
    assert config.serve.engine_port == 31
    assert problems(text) == [
        "f.yaml:4:18: profiles.one.served_name: "
        "variable A is not set; set it or write ${A:-default}"
    ]


def test_an_empty_variable_takes_the_default_and_may_be_empty_without_one() -> None:
    text = GOOD + "    environment: {A: '${X:-x}', B: '${X}'}\n"
    assert loaded(text, X="").config.profiles["one"].environment == {"A": "x", "B": ""}


def test_a_half_written_variable_is_refused() -> None:
    [found] = problems(GOOD + '    served_name: "${A"\n')
    assert "`${` starts a variable" in found


def test_not_utf8_unreadable_and_too_large_files_are_problems_with_a_position(
    tmp_path: Path,
) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError) as caught:
        load([latin, tmp_path, big], environment={})
    found = [str(problem).removeprefix(str(tmp_path)) for problem in caught.value.problems]
    assert found == [
        "/latin.yaml:2:7: byte 0xe9 is not UTF-8",
        ":1:1: cannot be read: Is a directory",
        "/big.yaml:1:1: larger than 1 MiB",
    ]


def test_every_flag_that_opsctl_owns_is_refused_in_any_spelling() -> None:
    for flag in ("host", "port", "model-path", "model_path", "api-key", "api-ke", "admin_api_key"):
        found = problems(f"{GOOD}    flags: {{{flag}: sk-1}}\n")
        assert re.match(rf"f.yaml:4:13: profiles.one.flags.{flag}: not allowed", found[0])
        assert "sk-1" not in found[0]
    assert loaded(f"{GOOD}    flags: {{ssl-keyfile: x}}\n").config.profiles["one"].flags
