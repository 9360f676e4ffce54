"""FlashInfer's JIT cache: builds that a patch makes stale are put out of the way, then removed.

Layout: <cache>/<flashinfer version>/<architectures>/{cached_ops,generated}/<module>/
(`flashinfer/jit/env.py`, 0.6.3 to 0.7.2).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from opsctl.errors import PreconditionError

_ASIDE = ".opsctl-stale"


def builds(caches: Sequence[Path], version: str, globs: Collection[str]) -> list[Path]:
    """Return the folders of built modules that match, for one version of FlashInfer.

    Also those that a killed run had put aside. Raises PreconditionError where a cache may not be
    read.
    """
    try:
        found = {
            path
            for cache in caches
            for glob in globs
            for kind in ("cached_ops", "generated")
            for name in (glob, glob + _ASIDE)
            for path in (cache / version).glob(f"*/{kind}/{name}")
            if path.is_dir() and not path.is_symlink()
        }
    except OSError as error:
        raise PreconditionError(
            f"{error.filename}: stale builds cannot be looked for: {error.strerror}; nothing was "
            "changed",
            hint="run it as the user who owns the cache, or name the cache with --jit-cache",
        ) from error
    return sorted(found)


@contextmanager
def put_aside(folders: Sequence[Path]) -> Iterator[None]:
    """Rename folders; removed at the end, put back on any error.

    Raises PreconditionError where one cannot be renamed.
    """
    moved: list[tuple[Path, Path]] = []
    try:
        for folder in folders:
            if folder.name.endswith(_ASIDE):
                continue
            aside = folder.with_name(folder.name + _ASIDE)
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            moved.append((folder, aside))
        yield
    except BaseException as error:
        for folder, aside in moved:
            aside.rename(folder)
        if isinstance(error, OSError):
            raise PreconditionError(
                f"{error.filename}: a stale build cannot be put aside: {error.strerror}",
                hint="run it as the user who owns the cache, or name the cache with --jit-cache",
            ) from error
        raise
    for aside in [*(aside for _, aside in moved), *(x for x in folders if x.name.endswith(_ASIDE))]:
        shutil.rmtree(aside, ignore_errors=True)
