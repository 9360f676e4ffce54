"""Byte code for patched files, made by the interpreter they are for; nothing is imported.

That this interpreter can parse them is also the check of their syntax: an environment may have
another Python than opsctl.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from opsctl.errors import PreconditionError

DEADLINE = 60.0
_PROGRAM = """
import base64, importlib.util, json, marshal, sys
asked = json.load(sys.stdin)
told = {}
for path, text in asked["files"].items():
    source = base64.b64decode(text)
    code = compile(source, asked["root"] + "/" + path, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + (0).to_bytes(4, "little")
    head += (asked["time"] & 0xFFFFFFFF).to_bytes(4, "little")
    head += (len(source) & 0xFFFFFFFF).to_bytes(4, "little")
    target = importlib.util.cache_from_source("/" + path, optimization="")
    told[path] = [target, base64.b64encode(head + marshal.dumps(code)).decode()]
json.dump(told, sys.stdout)
"""


def compiled(
    python: Path | None, root: Path, sources: Mapping[str, bytes], mtime_ns: int
) -> dict[str, dict[str, bytes]]:
    """Return byte code by source and its own path; only a syntax check without an interpreter.

    `mtime_ns` is the time the sources will have, since the epoch. Raises PreconditionError when
    one of them does not compile.
    """
    if not sources:
        return {}
    if python is None:
        return _checked_only(sources)
    asked = {
        "root": str(root),
        "time": mtime_ns // 1_000_000_000,
        "files": {path: base64.b64encode(text).decode() for path, text in sources.items()},
    }
    said = _ask(python, json.dumps(asked))
    try:
        answer: dict[str, tuple[str, str]] = json.loads(said)
        return {
            path: {answer[path][0].lstrip("/"): base64.b64decode(answer[path][1], validate=True)}
            for path in sources
        }
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise PreconditionError(
            f"{python} does not answer as Python does: {said[:60]!r}",
            hint="give the interpreter that runs SGLang (--python)",
        ) from error


def _checked_only(sources: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    for path, text in sources.items():
        try:
            compile(text, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise PreconditionError(f"{path} would not compile: {error}") from error
    return {path: {} for path in sources}


def _ask(python: Path, question: str) -> str:
    try:
        done = subprocess.run(
            [str(python), "-I", "-S", "-B", "-c", _PROGRAM],
            input=question,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE,
            check=False,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PreconditionError(
            f"{python} cannot be run to compile the patched files: {error}",
            hint="give the interpreter that runs SGLang (--python)",
        ) from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["nothing said"]
        raise PreconditionError(f"the patched files do not compile with {python}: {said[-1]}")
    return done.stdout
