"""The state of each patch in an environment, from digests alone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from opsctl.patching.diff import FileDiff, presence
from opsctl.patching.environment import Environment
from opsctl.patching.headers import PatchFile
from opsctl.patching.installed import Installed
from opsctl.patching.series import Digests, Patch, Series, public

State = Literal["applied", "applicable", "not needed", "superseded", "drifted", "blocked"]


@dataclass(frozen=True)
class PatchState:
    """One patch in one environment.

    `outdated`: applied, but not as this opsctl would. `unknown`: its files could not be compared.
    """

    patch: Patch
    state: State
    reason: str
    outdated: bool = False
    unknown: bool = False

    @property
    def left_alone(self) -> bool:
        """Whether its files stay as they are while other patches are applied or taken back."""
        return self.state in {"drifted", "blocked"} and not self.outdated


@dataclass(frozen=True)
class Situation:
    """What else decides: an unfinished change, and the engine that runs from the environment."""

    unfinished: bool = False
    running: str | None = None


def states(
    series: Series,
    environment: Environment,
    installed: Mapping[str, Installed],
    situation: Situation = Situation(),
) -> tuple[PatchState, ...]:
    """Tell the state of every patch, in the order of the series."""
    found = [_state(series, environment, installed, patch) for patch in series.patches]
    return tuple(_in_situation(state, situation) for state in found)


def _in_situation(state: PatchState, situation: Situation) -> PatchState:
    if state.state not in {"applied", "applicable", "drifted"}:
        return state
    if situation.unfinished:
        why = (
            "a change is under way or was interrupted; `opsctl patch apply` or `revert` takes back "
            "an interrupted one first"
        )
        return PatchState(state.patch, "drifted", why)
    if situation.running is not None and state.state == "applicable":
        why = f"an engine runs from this environment: {situation.running}; stop it first"
        return replace(state, state="blocked", reason=why)
    return state


def _state(
    series: Series, environment: Environment, installed: Mapping[str, Installed], patch: Patch
) -> PatchState:
    package = environment.packages.get(patch.package)
    if package is None:
        return PatchState(patch, "not needed", f"{patch.package} is not installed there")
    if package.trouble is not None or package.version is None:
        return _unknown(patch, package.trouble or "its version is unknown")
    if not series.knows(patch.package, package.version):
        known = series.releases[patch.package]
        why = f"opsctl knows {patch.package} {known[0]} to {known[-1]}, not {package.version}"
        return _unknown(patch, why)
    return _of_release(environment, installed[patch.package], patch, package.version)


def _unknown(patch: Patch, why: str) -> PatchState:
    return PatchState(patch, "blocked", why, unknown=True)


def _of_release(
    environment: Environment, installed: Installed, patch: Patch, version: str
) -> PatchState:
    file = patch.file_for(version)
    if file is None:
        other = patch.otherwise(version)
        if other is None:
            return _unknown(patch, f"there is no patch for {version}")
        return PatchState(patch, other.state, other.why)
    found = _by_digests(patch, file, installed)
    unmet = _unmet(environment, file)
    if unmet is None or found.state == "drifted":
        return found
    # What is in must be told as such, so that it can be taken back.
    state: State = "applied" if found.state == "applied" else "blocked"
    return replace(found, state=state, reason=unmet)


def _unmet(environment: Environment, file: PatchFile) -> str | None:
    for needed in file.requires[1:]:
        package = environment.packages.get(needed.name)
        version = package.version if package is not None else None
        if version is None or not needed.specifier.contains(public(version), prereleases=True):
            return f"it needs {needed}; {version or 'none'} is installed"
    return None


def _by_digests(patch: Patch, file: PatchFile, installed: Installed) -> PatchState:
    version = public(installed.package.version or "")
    digests = patch.digests.get(version, {})
    kinds = {x.path: _kind(installed, digests[x.path], x.path) for x in file.changes}
    count = Counter(kinds.values())
    if count.keys() == {"released"}:
        return PatchState(patch, "applicable", _advice(patch, version))
    more = _has_more(installed, patch.name, kinds)
    if count.keys() == {"patched"} and not more:
        return PatchState(patch, "applied", "")
    if count.keys() <= {"outdated", "released", "patched"} and (count["outdated"] or more):
        why = "applied as another opsctl does it; applying it again replaces that"
        return PatchState(patch, "applicable", why, outdated=True)
    reasons = [
        f"{x.path} {_how(installed, digests[x.path], x)}"
        for x in file.changes
        if kinds[x.path] != "released" or not count["other"]
    ]
    return PatchState(patch, "drifted", "; ".join(reasons))


def _has_more(installed: Installed, name: str, paths: Collection[str]) -> bool:
    """Whether an edition of the patch was applied that changes more files."""
    files = installed.manifest.files if installed.manifest else {}
    return any(x.patch == name and path not in paths for path, x in files.items())


def _kind(
    installed: Installed, known: Digests, path: str
) -> Literal["released", "patched", "outdated", "other"]:
    sha256 = installed.files[path].sha256
    if sha256 == known.released:
        return "released"
    if sha256 == known.patched:
        return "patched"
    applied = installed.manifest.files.get(path) if installed.manifest else None
    original = installed.kept.get(path)
    if applied is None or applied.sha256 != sha256 or original is None:
        return "other"
    return "outdated" if original.sha256 == known.released else "other"


def _advice(patch: Patch, version: str) -> str:
    instead = patch.instead(version)
    if instead is not None:
        return f"recommended instead: {instead.use} ({instead.why})"
    return patch.entry.caution or ""


def _how(installed: Installed, known: Digests, change: FileDiff) -> str:
    """Say how a file differs from both the release and the patched one."""
    file = installed.files[change.path]
    if file.content is None:
        return file.why
    if file.sha256 == known.released:
        return "is as released"
    if file.sha256 == known.patched:
        return "is patched"
    recorded = installed.recorded.get(change.path)
    found = f"is neither as released nor patched (sha256 {str(file.sha256)[:12]}..."
    if recorded == file.sha256:
        return f"{found}, which its RECORD names: a rebuilt or forked package)"
    return f"{found}): {_hunks(presence(file.content, change))}"


def _hunks(found: Sequence[str]) -> str:
    count, total = Counter(found), len(found)
    if count["new"] == total:
        return "the patch is in, and something else was changed"
    if count["old"] == total:
        return "the patch is not in, and something else was changed"
    words = {"new": "in", "old": "not in", "neither": "in no known form", "both": "in twice"}
    told = [f"{count[key]} {word}" for key, word in words.items() if count[key]]
    return f"of {total} places of the patch {', '.join(told)}"
