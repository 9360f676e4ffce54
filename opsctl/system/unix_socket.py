"""Unix sockets below directories of any depth.

The kernel takes at most 107 bytes as the path of a socket, and a state directory may lie deeper.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 107


@contextmanager
def address(path: Path) -> Iterator[str]:
    """A name for `path` that is short enough to listen on or to connect to, for the time being.

    Raises OSError when the directory of a socket with a long path cannot be opened.
    """
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
