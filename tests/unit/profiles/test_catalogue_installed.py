"""Reading an installation: both ways of declaring flags, and what may be broken about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from opsctl.profiles.catalogue import Catalogue, CatalogueError, Flag, installed
from opsctl.profiles.catalogue_model import Catalogue as Model

OLD = """
    import argparse, dataclasses
    from sglang.srt.choices import BACKENDS, Mode
    from sglang.srt.actions import DeprecatedAction, DeprecatedAlias as Renamed
    POLICIES = ["lru"] + ["lfu"]
    POLICIES += ["fifo"]
    POLICIES.append("lifo")
    if __debug__:
        SPEED = "fast"
    else:
        SPEED = "slow"

    @dataclasses.dataclass
    class ServerArgs:
        model_path: str
        tp_size: int = 1
        speed: str = SPEED
        tags: list = dataclasses.field(default_factory=lambda: ["a"])

        @staticmethod
        def add_cli_args(parser):
            parser.add_argument("--model-path", "--model", type=str, required=True, help="Path.")
            group = parser.add_argument_group("parallel")
            group.add_argument("--tensor-parallel-size", "--tp-size", type=int,
                               default=ServerArgs.tp_size)
            parser.add_argument("--backend", choices=BACKENDS + ["own"], default=BACKENDS[0])
            parser.add_argument("--policy", choices=POLICIES)
            parser.add_argument("--mode", choices=[m.name.lower() for m in Mode])
            parser.add_argument("--speed", default=ServerArgs.speed)
            parser.add_argument("--tags", nargs="+", default=ServerArgs.tags)
            parser.add_argument("--level", type=int, nargs="?", const=1, choices=(1, 2))
            parser.add_argument("--extra", type=json.loads, default="{}")
            parser.add_argument("--size", type=human_readable_int)
            parser.add_argument("--trust", action="store_true")
            parser.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True)
            for name in ("host", "port"):
                parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
            parser.add_argument("--gone", action=DeprecatedAction, error_message="use --here")
            parser.add_argument("--old-way", action=Renamed, new_flag="--new-way", type=int)
            parser.add_argument("--nag", action="store_true", help="(Deprecated: use --trust) Nag.")
            parser.add_argument("--kept", help="Replaces the deprecated --gone.")
"""
NEW = """
    import argparse
    from typing import List, Literal, Optional
    from sglang.srt.arg_groups.arg_utils import A, Arg, add_cli_args_from_dataclass
    from sglang.srt.fields import Model, Spec
    _INPUT_NAMESPACES = [Model, Spec]

    class ServerArgs:
        @staticmethod
        def add_cli_args(parser):
            add_cli_args_from_dataclass(parser, ServerArgs)
            parser.add_argument("--parser", choices=["auto"] + _parsers(),
                                default=_declared_default("parser"))

    ServerArgs = make("ServerArgs", ServerArgs)

    def _parsers():
        module = sys.modules.get("x")
        if module is not None:
            return list(module.Names)
        from sglang.srt.names import NAMES
        return list(NAMES)
"""
FIELDS = """
    import argparse
    from typing import List, Literal, Optional, Union
    from sglang.srt.choices import BACKENDS, Level
    from sglang.srt.arg_groups.arg_utils import A, Arg

    class Model:
        model_path: A[str, Arg(help="Path.", aliases=["--model"])]
        tp_size: A[int, Arg(help="h", cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
        secret: A[str, Arg(no_cli=True)] = ""
        no_help: int = 3
        parser: str = "auto"
        dtype: A[Literal["auto", "half"], "help"] = "auto"
        level: A[Optional[Level], "help"] = None
        trust: A[bool, "help"] = False
        maybe: A[bool | None, "help"] = None

    class Spec:
        backend: A[Optional[str], Arg(help="h", choices=BACKENDS)] = None
        sizes: A[Optional[List[int]], "help"] = None
        raw: A[List[str], Arg(help="h", type_parser=json_list_type)] = None
        either: A[Union[str, List[str]], "help"] = None
        overlap: A[Optional[bool], Arg(help="h", action=argparse.BooleanOptionalAction)] = None
        paths: A[dict, Arg(action=Paths, action_kwargs={"type": str, "nargs": "*"})] = None
        image: A[bool, "Deprecated. Use --backend=pil instead."] = False
"""
COMMON = {
    "sglang/__init__.py": "raise SystemExit('SGLang was imported')",
    "sglang/srt/__init__.py": "raise SystemExit('SGLang was imported')",
    "sglang/srt/choices.py": """
        from enum import Enum
        from typing import Literal
        BACKENDS = ["triton", "flashinfer"]
        Level = Literal["low", "high"]
        class Mode(Enum):
            NONE = 0
            ALL = 1
    """,
    "sglang/srt/actions.py": """
        import argparse
        class DeprecatedAction(argparse.Action):
            def __init__(self, option_strings, dest, error_message=None, nargs=0, **kwargs): ...
        class DeprecatedAlias(argparse.Action):
            def __init__(self, option_strings, dest, new_flag=None, **kwargs): ...
    """,
    "sglang/srt/names.py": "NAMES = {'kimi': a.Detector, 'qwen': b.Detector}",
    "sglang/srt/environ.py": """
        import os
        class EnvField: ...
        class Envs:
            SGLANG_ON = EnvBool(True)
            SGLANG_COUNT = EnvInt(2 ** 4)
            SGLANG_FOLDER = EnvStr(os.path.expanduser("~/.cache"))
            SGLANG_NEW = EnvBoolWithAlias(False, deprecated_name="SGLANG_OLD")
        _DEPRECATED_ENVS = {
            "SGLANG_FORMER": _DeprecatedEnv(replacement="SGLANG_ON", note="Now on.")
        }
        def _print_deprecated_env(new_name, old_name): ...
        _print_deprecated_env("SGLANG_ON", "SGLANG_ONCE")
    """,
    "sglang/srt/layers/deep/x.py": """
        a = os.environ.get("SGLANG_SEEN"); b = get_bool("SGL_SHORT")
        # SGLANG_COMMENT and 'SGLANG_' are no names
    """,
    "sglang/srt/models/kimi.py": """
        class KimiA: ...
        EntryClass = [
            KimiA,
            KimiB,
        ]
    """,
    "sglang/srt/models/qwen.py": "EntryClass = Qwen\n",
    "sglang/srt/models/none.py": "x = (",
    "sglang-0.5.99.dist-info/METADATA": (
        "Metadata-Version: 2.4\nName: sglang\nVersion: 0.5.99\n"
        "Requires-Dist: flashinfer_python==0.7.2\n"
        "Requires-Dist: torch>=2,<3; python_version > '3'\n"
        "Requires-Dist: pytest; extra == 'test'\nRequires-Dist: ~~~\n\nA text.\n"
    ),
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return root


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write(tmp_path, {**COMMON, "sglang/srt/server_args.py": OLD})


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write(
        tmp_path, {**COMMON, "sglang/srt/server_args.py": NEW, "sglang/srt/fields.py": FIELDS}
    )


def facts(flag: Flag) -> tuple[object, ...]:
    return (flag.kind, flag.type, flag.choices, flag.default, flag.many, flag.bare)


def test_flags_added_by_hand_are_read(old: Path) -> None:
    catalogue = installed(old)
    flags = catalogue.flags
    assert catalogue.unread == ()
    assert flags["model"].name == "model-path"
    assert flags["model"].required
    assert flags["tensor-parallel-size"].name == "tp-size"
    assert facts(flags["tp-size"]) == ("value", "int", None, "1", False, False)
    own = ("triton", "flashinfer", "own")
    assert facts(flags["backend"]) == ("value", "str", own, "triton", False, False)
    assert flags["policy"].choices == ("lru", "lfu", "fifo", "lifo")
    assert flags["mode"].choices == ("none", "all")
    assert flags["speed"].default == "fast"
    assert facts(flags["tags"]) == ("value", "str", None, '["a"]', True, False)
    assert facts(flags["level"]) == ("value", "int", ("1", "2"), None, False, True)
    assert (flags["extra"].type, flags["size"].type) == ("json", "size")
    assert facts(flags["trust"]) == ("switch", None, None, "false", False, False)
    assert flags["no-overlap"] is flags["overlap"]
    assert facts(flags["overlap"]) == ("optional-switch", None, None, "true", False, False)
    assert {"host", "port", "help"} <= flags.keys()
    lines = (old / "sglang/srt/server_args.py").read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if '"--trust"' in text)
    assert flags["trust"].where == f"sglang/srt/server_args.py:{line}"


def test_what_the_source_says_of_deprecated_flags_is_kept(old: Path) -> None:
    flags = installed(old).flags
    assert (flags["gone"].kind, flags["gone"].deprecated) == ("switch", "use --here")
    assert flags["gone"].refused
    assert (flags["old-way"].kind, flags["old-way"].deprecated) == ("value", "--new-way")
    assert not flags["old-way"].refused
    assert flags["nag"].deprecated == "(Deprecated: use --trust) Nag."
    assert flags["kept"].deprecated is None


def test_flags_made_of_annotated_fields_are_read(new: Path) -> None:
    catalogue = installed(new)
    flags = catalogue.flags
    assert catalogue.unread == ()
    assert flags["model"].name == "model-path"
    assert flags["model"].required
    assert flags["tensor-parallel-size"].name == "tp-size"
    assert flags["tp-size"].where == "sglang/srt/fields.py:9"
    assert not {"secret", "no-help"} & flags.keys()
    assert facts(flags["dtype"]) == ("value", "str", ("auto", "half"), "auto", False, False)
    assert flags["level"].choices == ("low", "high")
    assert flags["trust"].kind == flags["maybe"].kind == "switch"
    assert flags["backend"].choices == ("triton", "flashinfer")
    assert facts(flags["sizes"]) == ("value", "int", None, None, True, False)
    assert facts(flags["raw"]) == ("value", "json", None, None, False, False)
    assert facts(flags["either"]) == ("value", "str", None, None, False, False)
    assert flags["no-overlap"].kind == "optional-switch"
    assert facts(flags["paths"]) == ("value", "str", None, None, True, True)
    assert flags["image"].deprecated == "Deprecated. Use --backend=pil instead."
    assert facts(flags["parser"]) == (
        "value",
        "str",
        ("auto", "kimi", "qwen"),
        "auto",
        False,
        False,
    )


def test_variables_pins_and_models_are_read(old: Path) -> None:
    catalogue = installed(old)
    assert catalogue.version == "0.5.99"
    assert catalogue.environment == {
        "SGLANG_ON": "true",
        "SGLANG_COUNT": "16",
        "SGLANG_FOLDER": None,
        "SGLANG_NEW": "false",
        "SGLANG_OLD": None,
        "SGLANG_SEEN": None,
        "SGL_SHORT": None,
    }
    assert catalogue.deprecated_environment == {
        "SGLANG_OLD": "use SGLANG_NEW",
        "SGLANG_FORMER": "use SGLANG_ON. Now on.",
        "SGLANG_ONCE": "use SGLANG_ON",
    }
    assert catalogue.pins == {"flashinfer-python": "==0.7.2", "torch": ">=2,<3"}
    assert catalogue.models == {"KimiA", "KimiB", "Qwen"}


def test_what_cannot_be_told_is_named_and_not_guessed(old: Path) -> None:
    path = old / "sglang/srt/choices.py"
    path.write_text(path.read_text().replace('["triton", "flashinfer"]', "found_at_run_time()"))
    catalogue = installed(old)
    assert catalogue.flags["backend"].choices is None
    assert catalogue.flags["backend"].default is None
    assert [what.partition(": the ")[2].partition(":")[0] for what in catalogue.unread] == [
        "choices of --backend",
        "default of --backend",
    ]


def test_reading_imports_nothing_of_it(old: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from opsctl.profiles.catalogue import installed\n"
        f"sys.path.insert(0, {str(old)!r}); installed(Path({str(old)!r}))\n"
        "assert not {'sglang', 'torch'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_checkout_installed_for_development_is_read(old: Path, tmp_path: Path) -> None:
    site_packages = tmp_path / "site packages"
    site_packages.mkdir()
    checkout = tmp_path / "a checkout" / "python"
    checkout.mkdir(parents=True)
    (old / "sglang").rename(checkout / "sglang")
    info = (old / "sglang-0.5.99.dist-info").rename(site_packages / "sglang-0.5.99.dist-info")
    url = f'{{"url": "file://{str(tmp_path).replace(" ", "%20")}/a%20checkout", "dir_info": {{}}}}'
    (info / "direct_url.json").write_text(url)
    assert installed(site_packages).version == "0.5.99"
    (info / "direct_url.json").write_text('{"url": 3}')
    with pytest.raises(CatalogueError, match="no SGLang in"):
        installed(site_packages)


# --- broken installations ------------------------------------------------------------------------


def refused(site_packages: Path) -> str:
    with pytest.raises(CatalogueError) as caught:
        installed(site_packages)
    return caught.value.message


def test_no_installation(tmp_path: Path) -> None:
    assert refused(tmp_path) == f"no SGLang in {tmp_path}"
    assert refused(tmp_path / "absent") == f"no SGLang in {tmp_path / 'absent'}"


@pytest.mark.parametrize("name", ["server_args", "environ"])
def test_a_missing_module_is_named(old: Path, name: str) -> None:
    (old / f"sglang/srt/{name}.py").unlink()
    assert f"sglang.srt.{name} is missing" in refused(old)


@pytest.mark.parametrize("name", ["server_args", "environ", "choices"])
@pytest.mark.parametrize(
    "content", [b"def broken(:\n", b"x = 1\0", b"\xff\xfe", b"(" * 100_000, b"x = " + b"-" * 99_999]
)
def test_a_file_that_is_not_python_is_named(old: Path, name: str, content: bytes) -> None:
    (old / f"sglang/srt/{name}.py").write_bytes(content)
    assert f"srt/{name}.py" in refused(old)


def test_metadata_must_be_there_once_and_have_a_version(old: Path) -> None:
    info = old / "sglang-0.5.99.dist-info"
    (info / "METADATA").write_text("Name: sglang\n")
    assert "no version in it" in refused(old)
    (info / "METADATA").unlink()
    assert refused(old) == f"{info / 'METADATA'} is missing"
    (old / "sglang-0.5.9.dist-info").mkdir()
    assert "sglang-0.5.9.dist-info, sglang-0.5.99.dist-info" in refused(old)
    (old / "sglang-0.5.9.dist-info").rmdir()
    info.rmdir()
    assert "no dist-info" in refused(old)


def test_settings_without_flags_are_refused(old: Path) -> None:
    path = old / "sglang/srt/server_args.py"
    for text, said in [
        ("ServerArgs = 3\n", "no class ServerArgs"),
        ("class ServerArgs: ...\n", "no add_cli_args"),
        ("class ServerArgs:\n def add_cli_args(parser): pass\n", "no flag in"),
    ]:
        path.write_text(text)
        assert said in refused(old)


def test_no_models_is_incomplete(old: Path) -> None:
    for path in (old / "sglang/srt/models").iterdir():
        path.unlink()
    assert "no models" in refused(old)


def test_definitions_that_go_in_circles_end(old: Path) -> None:
    path = old / "sglang/srt/choices.py"
    path.write_text(
        "from sglang.srt.choices import BACKENDS as OTHER\n"
        "BACKENDS = OTHER + OTHER\nMode = Mode.x\nLevel = Level\n"
    )
    assert installed(old).flags["backend"].choices is None


def test_expressions_of_any_size_are_not_worked_out(old: Path) -> None:
    path = old / "sglang/srt/choices.py"
    path.write_text('BACKENDS = ["a" * 10 ** 9] * 9 ** 9 ** 9\nclass Mode: ...\n')
    assert installed(old).flags["backend"].choices is None


def test_the_catalogue_is_one_type() -> None:
    assert Catalogue is Model
