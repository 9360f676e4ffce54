"""Run by the interpreter of the real SGLang: what the real parser of each release consists of.

    python sglang_parsers.py FOLDER...

Each folder holds a release's sources; a line of JSON is printed for each. The heavy libraries are
imported once, then each release in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys


def main() -> None:
    import torch  # noqa: F401
    from transformers import AutoConfig

    # Some releases bring model types that the newer transformers installed here has by itself.
    register = AutoConfig.register
    AutoConfig.register = staticmethod(lambda *a, **k: register(*a, **{**k, "exist_ok": True}))
    for folder in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                say(described(folder))
                status = 0
            except BaseException as error:
                say({"folder": folder, "error": repr(error)})
            finally:
                os._exit(status)
        os.waitpid(child, 0)


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def described(folder: str) -> dict[str, object]:
    sys.path.insert(0, folder)
    import sglang
    from sglang.srt.environ import EnvField, Envs
    from sglang.srt.server_args import ServerArgs

    assert sglang.__file__.startswith(folder), sglang.__file__
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return {
        "folder": folder,
        "flags": [flag(action) for action in parser._actions],
        "environment": {
            name: plain(field.default)
            for name, field in vars(Envs).items()
            if isinstance(field, EnvField)
        },
    }


def flag(action: argparse.Action) -> dict[str, object]:
    return {
        "options": [o.removeprefix("--") for o in action.option_strings if o.startswith("--")],
        "action": type(action).__name__,
        "nargs": action.nargs,
        "choices": None if action.choices is None else [str(c) for c in action.choices],
        "type": getattr(action.type, "__name__", None),
        "default": plain(action.default),
        "required": action.required,
    }


def plain(value: object) -> object:
    """A value as JSON has it; what JSON has not becomes its name in angle brackets."""
    if value is argparse.SUPPRESS:
        return None
    if hasattr(value, "value") and not isinstance(value, type):
        return value.value  # a member of an enumeration
    if isinstance(value, set | frozenset):
        return sorted(value)
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return value
    return f"<{type(value).__name__}>"


if __name__ == "__main__":
    main()
