"""The journal: one JSON object a line, rotated by size, never in the way of serving."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from opsctl.observe.rotating import RotatingFile


class Journal:
    """Appends events to `path`; the file is renamed to `path.1` … `path.<keep>` when it is full.

    Writing never raises: a full or vanished disk must not stop serving. What could not be written
    is counted in `dropped` and told by the next event that gets through. `echo` gets each event
    as a sentence, for the terminal or systemd's journal.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 10 * 2**20,
        keep: int = 5,
        echo: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.path = path
        self._echo = echo
        self.dropped = 0
        self._file = RotatingFile(path, max_bytes=max_bytes, keep=keep)

    def record(self, event: str, **facts: object) -> None:
        """Append one event; `facts` become members beside `time` (UTC) and `event`."""
        entry: dict[str, object] = {"time": timestamp(), "event": event, **facts}
        if self.dropped:
            entry["dropped_before"] = self.dropped
        line = json.dumps(entry, default=str) + "\n"
        self._echo(sentence(entry))
        try:
            self._file.append(line)
        except OSError:
            self.dropped += 1
        else:
            self.dropped = 0


def timestamp() -> str:
    """Now, as ISO-8601 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sentence(entry: Mapping[str, object]) -> str:
    """An event as one line for people: time, name, facts."""
    facts = {key: value for key, value in entry.items() if key not in {"time", "event"}}
    told = " ".join(f"{key}={_short(value)}" for key, value in facts.items())
    return f"{entry.get('time', '?')} {entry.get('event', '?'):<18} {told}".rstrip()


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def parse_lines(text: str) -> Iterator[dict[str, object]]:
    """Events in `text`; half-written and foreign lines are passed over."""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "event" in entry:
            yield entry
