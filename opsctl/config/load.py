"""From YAML files to the frozen configuration, with a position for every complaint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.config.schema import Config


@dataclass(frozen=True)
class Origin:
    """Where a value was written; `line` and `column` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"
