"""All checks, in the order they are shown. Pure."""

from __future__ import annotations

from difflib import get_close_matches

from opsctl.doctor.checks import driver, gpus, links, peers, serving, stack, system, toolkit
from opsctl.doctor.model import Check
from opsctl.errors import UsageError

CHECKS: tuple[Check, ...] = (
    *driver.CHECKS,
    *gpus.CHECKS,
    *links.CHECKS,
    *peers.CHECKS,
    *toolkit.CHECKS,
    *stack.CHECKS,
    *system.CHECKS,
    *serving.CHECKS,
)


def named(name: str) -> Check:
    """Return a check by its id; raises UsageError."""
    for one in CHECKS:
        if one.id == name:
            return one
    near = get_close_matches(name, [one.id for one in CHECKS], n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"there is no check {name!r}{guess}", hint="see `opsctl doctor list`")


def chosen(only: tuple[str, ...] = ()) -> tuple[Check, ...]:
    """Return the named checks in their order, or all; raises UsageError."""
    wanted = {named(name).id for name in only}
    return tuple(one for one in CHECKS if not only or one.id in wanted)
