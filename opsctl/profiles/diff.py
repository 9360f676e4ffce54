"""What differs between two launch profiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opsctl.config.schema import LaunchProfile
from opsctl.config.written import flat, written
from opsctl.profiles.flags import rendered


@dataclass(frozen=True)
class Difference:
    """One key whose value differs; None where a profile does not have it."""

    key: str
    left: object
    right: object


def effective(profile: LaunchProfile) -> dict[str, Any]:
    """The profile in written form without what has no effect: `extends` and removed entries."""
    content = written(profile)
    del content["extends"]
    content["flags"] = {k: v for k, v in content["flags"].items() if rendered(v)}
    content["environment"] = {
        name: None if value == "" else value for name, value in content["environment"].items()
    }
    return content


def differences(left: LaunchProfile, right: LaunchProfile) -> tuple[Difference, ...]:
    """Every key with two values, in the order of the schema, then by name."""
    ours, theirs = _rows(left), _rows(right)
    keys = list(dict.fromkeys((*ours, *theirs)))
    return tuple(
        Difference(key, ours.get(key), theirs.get(key))
        for key in sorted(keys, key=lambda key: (_place(key), key))
        if ours.get(key) != theirs.get(key)
    )


def _rows(profile: LaunchProfile) -> dict[str, Any]:
    content = effective(profile)
    rows: dict[str, Any] = {}
    for section, value in content.items():
        if section in ("flags", "environment"):
            rows |= {f"{section}.{name}": item for name, item in value.items()}
        else:
            rows |= flat(value, section)
    return rows


def _place(key: str) -> int:
    return list(LaunchProfile.model_fields).index(key.partition(".")[0])
