"""Engine flags: from a profile's mapping to command line arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from opsctl.config.flags import canonical
from opsctl.config.schema import FlagValue


def rendered(value: FlagValue) -> bool:
    """Whether a flag with this value appears on the command line; null and false remove it."""
    return value is not None and value is not False


def arguments(flags: Mapping[str, FlagValue]) -> Iterator[str]:
    """Arguments in the order of the mapping.

    `true` is a bare flag, a list follows its flag as several arguments, a mapping becomes JSON.
    """
    for name, value in flags.items():
        if not rendered(value):
            continue
        option = f"--{canonical(name)}"
        if value is True:
            yield option
        elif isinstance(value, list | tuple):
            yield from (option, *map(_text, value))
        else:
            # argparse takes a value that starts with a dash for a flag, unless it is glued on.
            text = _text(value)
            yield from (f"{option}={text}",) if text.startswith("-") else (option, text)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
