"""A command that is imported gives the same arguments and the same environment back."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from opsctl.config.load import load_text
from opsctl.config.names import looks_secret
from opsctl.config.schema import LaunchProfile
from opsctl.profiles.importer import Imported, parse
from opsctl.profiles.importer_yaml import render
from opsctl.profiles.launch import command, shell

Flags = Mapping[str, Sequence[str]]
OWNED = {"model-path", "host", "port", "served-model-name", "speculative-draft-model-path"}
BASE = {"PATH": "/usr/bin", "HOME": "/h/u", "LANG": "C"}
NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")

# --- what is started -----------------------------------------------------------------------------

FLAG = st.from_regex(r"x[a-z]{0,6}(-[a-z0-9]{1,6}){0,2}", fullmatch=True)
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=12
).filter(lambda text: not text.startswith("-") or NEGATIVE.fullmatch(text))
NUMBER = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
    st.sampled_from(["0.90", "1e-5", "08", "0x10", "-0", "1_000", "+1", ".5", "12:30", "inf"]),
)
WORDS = st.sampled_from(
    ["true", "false", "null", "on", "off", "y", "~", "", "=", "<<", "2024-01-01", "a b", "$HOME",
     "${X}", "$$", "${", "#", "a#b", "'", '"', "\\", "*", "{a,b}", "!", "- a", "`x`", "$(x)",
     "/m/a.json", "%s", "a\nb", "\u2028", "\x85", "a: b", "@x", "&", "|", ">", "é", "\ufeff"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
MAPPING = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
JSON_TEXT = st.one_of(
    MAPPING.map(lambda content: json.dumps(content, ensure_ascii=False)),
    MAPPING.map(json.dumps),
    MAPPING.map(lambda content: json.dumps(content, separators=(",", ":"))),
)


def fits(text: str) -> bool:
    """No secret, which is never repeated, and nothing that no command line holds."""
    refused = re.search(r"[\0\ud800-\udfff]|hf_|sk-|Bearer|://", text)
    return refused is None and not (text.startswith("-") and not NEGATIVE.fullmatch(text))


VALUE = st.one_of(TEXT, NUMBER, WORDS, JSON_TEXT).filter(fits)
FLAGS = st.dictionaries(FLAG, st.lists(VALUE, max_size=3), max_size=6)
VARIABLE = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not looks_secret(name) and name not in {"HOME", "LANG", "PATH", "_"}
)
ENVIRONMENT = st.dictionaries(VARIABLE, st.none() | VALUE.filter(bool), max_size=5)

# --- how it is written ---------------------------------------------------------------------------


class Writer:
    """Writes the command in one of the many ways a shell takes for the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.variables: list[str] = []

    def word(self, text: str) -> str:
        style = self.random.choice(["single", "double", "ansi", "escaped", "mixed", "variable"])
        if style == "mixed" and len(text) > 1:
            cut = self.random.randrange(1, len(text))
            return self.word(text[:cut]) + self.word(text[cut:])
        if style == "variable":
            name = f"v{len(self.variables)}"
            self.variables.append(f"{name}={self.quoted('single', text)}")
            return self.random.choice([f'"${name}"', f'"${{{name}}}"', f'"${{{name}-no}}"'])
        return self.quoted(style, text)

    def quoted(self, style: str, text: str) -> str:
        if odd(text):
            style = "ansi"
        if style == "double":
            return '"' + re.sub(r'([$`"\\])', r"\\\1", text) + '"'
        if style == "ansi":
            return "$'" + "".join(map(self.ansi, text)) + "'"
        if style == "escaped" and text and "\n" not in text:
            return "".join(c if c.isalnum() and c.isascii() else "\\" + c for c in text)
        return "'" + text.replace("'", "'\\''") + "'"

    def ansi(self, character: str) -> str:
        code = ord(character)
        if character in "'\\" or code < 32 or code == 127:
            return f"\\x{code:02x}" if self.random.random() < 0.5 else f"\\{code:03o}"
        return character if code < 128 else f"\\U{code:08x}"

    def space(self) -> str:
        return self.random.choice([" ", "  ", "\t", " \\\n  ", " \\\n"])

    def flags(self, flags: Flags) -> str:
        return "".join(self.space() + self.flag(name, values) for name, values in flags.items())

    def flag(self, name: str, values: Sequence[str]) -> str:
        option = f"--{name}"
        if len(values) == 1 and (self.random.random() < 0.4 or values[0].startswith("-")):
            return f"{option}={self.word(values[0])}"
        return "".join([option, *(self.space() + self.word(value) for value in values)])

    def command(self, flags: Flags, environment: Mapping[str, str | None]) -> str:
        lines, inline, env = ["#!/bin/bash", "set -e  # stop"], "", ""
        for name, value in environment.items():
            how = self.random.choice(["export", "inline", "env", "later"])
            if value is None:
                lines += [f"unset {name}"] if how != "env" else []
                env = f"-u {name} {env}" if how == "env" else env
            elif how == "export":
                lines.append(f"export {name}={self.word(value)}")
            elif how == "later":
                lines.append(f"{name}={self.word(value)}; export {name}")
            elif how == "inline":
                inline += f"{name}={self.word(value)} "
            else:
                env += f"{name}={self.word(value)} "
        prefix = self.random.choice(["", "nohup ", "exec ", "time "])
        shown = f"env {env}" if env else ""
        module = "-m sglang.launch_server --model-path /m"
        rest = self.flags(flags)
        end = self.random.choice(["", " > log 2>&1 &", " 2>/dev/null | tee log", "  # go"])
        launch = f"{inline}{prefix}{shown}/p/python {module}{rest} --port 1{end}"
        return "\n".join([*lines[:2], *self.variables, *lines[2:], launch, ""])


def odd(text: str) -> bool:
    """Whether the text cannot be pasted but as an escape."""
    return re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text) is not None or "\r" in text


def read_back(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The flags of a command line and their values, as argparse takes them."""
    found: dict[str, tuple[str, ...]] = {}
    values: list[str] = []
    name = ""
    for argument in [*argv, "--end"]:
        if re.match(r"--[a-z]", argument):
            found[name] = tuple(values)
            name, equals, value = argument[2:].partition("=")
            values = [value] if equals else []
        else:
            values.append(argument)
    return {name: values for name, values in found.items() if name and name not in OWNED}


def started(profile: LaunchProfile) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    made = command(profile, port=2, caller_environment=BASE)
    assert made.argv[:3] == ("/p/python", "-m", "sglang.launch_server")
    flags = read_back(made.argv[3:])
    assert flags.pop("enable-metrics") == ()
    environment = dict(made.environment)
    assert environment.pop("PATH") == "/p:/usr/bin"
    return flags, environment


class Anything(dict[str, str]):
    """An environment in which every variable is set."""

    def get(self, key: str, default: object = None) -> str:  # type: ignore[override]
        return "text"


def loaded(imported: Imported) -> LaunchProfile:
    result = load_text(render(imported), name="pasted", environment=Anything())
    assert list(result.config.profiles) == [imported.name]
    return result.config.profiles[imported.name]


@settings(max_examples=300, deadline=None)
@given(FLAGS, ENVIRONMENT, st.integers(0, 2**32))
def test_what_is_pasted_is_what_is_started(
    flags: dict[str, list[str]], environment: dict[str, str | None], seed: int
) -> None:
    text = Writer(seed).command(flags, environment)
    imported = parse(text)
    wanted_flags = {name: tuple(values) for name, values in flags.items()}
    kept = {name: value for name, value in environment.items() if value is not None}
    wanted = (wanted_flags, {"HOME": "/h/u", "LANG": "C"} | kept)
    assert started(imported.profile) == wanted
    assert loaded(imported) == imported.profile
    removed = {name for name, value in environment.items() if value is None}
    assert {n for n, v in imported.profile.environment.items() if v is None} == removed


@settings(max_examples=150, deadline=None)
@given(FLAGS, ENVIRONMENT, st.integers(0, 2**32))
def test_the_shell_line_of_an_imported_profile_imports_to_the_same_again(
    flags: dict[str, list[str]], environment: dict[str, str | None], seed: int
) -> None:
    first = command(
        parse(Writer(seed).command(flags, environment)).profile, port=2, caller_environment=BASE
    )
    assume(not odd("".join((*first.argv, *first.environment.values()))))
    again = command(parse(shell(first)).profile, port=2, caller_environment=BASE)
    assert again.argv == first.argv
    assert again.environment == first.environment


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab =$\"'\\\n#{}()[]`|&;<>-~:@!*,\t"), max_size=40))
def test_any_text_is_either_understood_or_refused_with_its_place(text: str) -> None:
    from opsctl.profiles.importer import CommandTextError

    launch = f"A=1 {text} python -m sglang.launch_server --model-path /m {text}"
    try:
        loaded(parse(launch))
    except CommandTextError as error:
        lines = launch.split("\n")
        assert 1 <= error.at.line <= len(lines)
        assert 1 <= error.at.column <= len(lines[error.at.line - 1]) + 1
