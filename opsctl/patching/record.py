"""The RECORD of an installed wheel: path, SHA-256 and size of every file. Pure.

Lines that are not changed are kept to the byte. Format: the packaging specification "Recording
installed projects".
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Mapping

HASH = "sha256="


def digest(content: bytes) -> str:
    """Return the SHA-256 as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def digests(record: bytes) -> dict[str, str]:
    """Return the SHA-256 (hexadecimal) of each path that has one; a damaged one is none."""
    found = {}
    for path, value, *_ in _rows(record):
        if value.startswith(HASH):
            encoded = value.removeprefix(HASH)
            try:
                raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
            except ValueError:
                continue
            found[path] = raw.hex()
    return found


def paths(record: bytes) -> list[str]:
    """Return every path, in order."""
    return [row[0] for row in _rows(record)]


def rewritten(
    record: bytes,
    changed: Mapping[str, bytes],
    added: Mapping[str, bytes | None],
    removed: Iterable[str],
) -> bytes:
    """Return the RECORD with other contents, more files (None: unhashed) and fewer files."""
    gone, ending = set(removed), b"\r\n" if b"\r\n" in record else b"\n"
    lines = []
    for line in record.splitlines(keepends=True):
        path = _path(line)
        if path in added or path in gone:
            continue
        lines.append(_line(path, changed[path], ending) if path in changed else line)
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += ending
    return b"".join([*lines, *(_line(path, added[path], ending) for path in sorted(added))])


def _line(path: str, content: bytes | None, ending: bytes) -> bytes:
    row = [path, "", ""]
    if content is not None:
        encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        row = [path, HASH + encoded, str(len(content))]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(row)
    return text.getvalue().encode() + ending


def _rows(record: bytes) -> list[list[str]]:
    """Read line by line: a quotation mark that is never closed spoils its own line only."""
    found = []
    for line in record.decode("utf-8", errors="replace").replace("\r", "\n").split("\n"):
        try:
            found += [row for row in csv.reader([line]) if len(row) >= 2]
        except csv.Error:
            continue
    return found


def _path(line: bytes) -> str:
    rows = _rows(line)
    return rows[0][0] if rows else ""
