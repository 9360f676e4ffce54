"""Which patches shall be applied afterwards, and what stands in the way of that. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from opsctl.errors import PreconditionError
from opsctl.patching.states import PatchState


def wanted_names(found: Iterable[PatchState], selected: Collection[str], apply: bool) -> list[str]:
    """Return which patches are to be applied afterwards; raises PreconditionError with every
    patch of the selection that stands in the way.
    """
    found = list(found)
    wrong = [x for x in found if x.patch.name in selected and _in_the_way(x, apply)]
    if wrong:
        lines = [f"  {x.patch.name} is {x.state}: {x.reason}" for x in wrong]
        raise PreconditionError("nothing was changed:\n" + "\n".join(lines), hint=_remedy(wrong))
    keep = {x.patch.name for x in found if x.state == "applied" or x.outdated}
    if apply:
        return sorted(keep | {x.patch.name for x in found if _can_be(x, selected)})
    remaining = keep - set(selected)
    dependents = [
        f"  {x.patch.name} needs {need}"
        for x in found
        for need in x.patch.entry.needs
        if x.patch.name in remaining and need in keep and need not in remaining
    ]
    if dependents:
        raise PreconditionError(
            "nothing was changed:\n" + "\n".join(dependents),
            hint="take back both: give --only once for each",
        )
    return sorted(remaining)


def _in_the_way(state: PatchState, apply: bool) -> bool:
    """What is blocked and known not to be in needs no taking back."""
    return state.state == "drifted" or (state.state == "blocked" and (apply or state.unknown))


def _can_be(state: PatchState, selected: Collection[str]) -> bool:
    return state.patch.name in selected and state.state == "applicable"


def _remedy(wrong: Iterable[PatchState]) -> str:
    drifted = sorted({x.patch.package for x in wrong if x.state == "drifted"})
    if drifted:
        names = ", ".join(drifted)
        return (
            "opsctl changes no file that somebody else has changed: install the package anew "
            f"(same version, --force-reinstall --no-deps): {names}"
        )
    return "see `opsctl patch status`"
