"""How patches and their states are shown."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opsctl.cli.options import Output
from opsctl.cli.output import emit, grid, message

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opsctl.patching.apply import Edit
    from opsctl.patching.environment import Environment
    from opsctl.patching.series import Patch, Series
    from opsctl.patching.states import PatchState

Document = dict[str, Any]


def print_states(
    environment: Environment,
    states: Sequence[PatchState],
    output: Output,
    schema: str,
    more: Mapping[str, object] | None = None,
) -> None:
    """Print the state of patches; `more` is for JSON and YAML only."""
    versions = {name: package.version for name, package in environment.packages.items()}
    document: Document = {
        "site_packages": str(environment.root),
        "package_versions": versions,
        "patches": [
            {
                "name": x.patch.name,
                "package": x.patch.package,
                "state": x.state,
                "reason": x.reason,
            }
            for x in states
        ],
        **(more or {}),
    }
    if output is Output.TABLE:
        told = ", ".join(f"{name} {version or '?'}" for name, version in versions.items())
        message(f"{environment.root}: {told or 'neither SGLang nor FlashInfer'}")
    emit(document, output, schema=schema, table=lambda: _states_table(document["patches"]))


def _states_table(rows: Iterable[Document]) -> RenderableType:
    return grid(
        ("PATCH", "PACKAGE", "STATE", "REASON"),
        [(x["name"], x["package"], x["state"], x["reason"]) for x in rows],
    )


def print_diff(edits: Iterable[Edit]) -> None:
    """Print unified diffs to stderr, so that stdout stays the document."""
    for edit in edits:
        before = edit.before.decode(errors="replace").splitlines(keepends=True)
        after = edit.after.decode(errors="replace").splitlines(keepends=True)
        names = (f"a/{edit.path}", f"b/{edit.path}")
        sys.stderr.writelines(difflib.unified_diff(before, after, *names))


def catalogue(series: Series) -> Document:
    """Return every patch with the releases it is for."""
    return {
        "releases": {name: list(versions) for name, versions in series.releases.items()},
        "patches": [_entry(series, patch) for patch in series.patches],
    }


def catalogue_table(document: Document) -> RenderableType:
    """One row a patch."""
    return grid(
        ("PATCH", "PACKAGE", "RELEASES", "OPT-IN", "FOR", "RECOMMENDED INSTEAD"),
        [
            (
                x["name"],
                x["package"],
                _span(x["releases"]),
                x["optional"],
                x["purpose"],
                f"{x['instead']['releases']}: {x['instead']['use']}" if x["instead"] else "",
            )
            for x in document["patches"]
        ],
    )


def description(series: Series, patch: Patch, release: str | None) -> Document:
    """Return a patch with its files; `release` limits them to those for it."""
    files = [file for file in patch.files if release is None or file.covers(release)]
    return {
        **_entry(series, patch),
        "otherwise": [x.model_dump() for x in patch.entry.otherwise],
        "files": [
            {"file": x.name, "requires": [str(r) for r in x.requires], "text": x.text}
            for x in files
        ],
    }


def description_text(document: Document) -> str:
    """For people: what it is for, then the files as they are."""
    lines = [f"# {document['name']} ({document['package']}): {document['purpose']}"]
    lines += [f"# {document[key]}" for key in ("caution",) if document[key]]
    if document["enables"]:
        lines.append(f"# for {document['enables']}")
    if document["needs"]:
        lines.append(f"# needs {', '.join(document['needs'])}")
    if document["instead"]:
        instead = document["instead"]
        lines.append(f"# {instead['releases']}: rather {instead['use']}: {instead['why']}")
    lines += [f"# {x['releases']}: {x['state']}: {x['why']}" for x in document["otherwise"]]
    for file in document["files"]:
        lines += ["", f"# {file['file']}", file["text"].rstrip("\n")]
    return "\n".join(lines)


def _entry(series: Series, patch: Patch) -> Document:
    releases = [x for x in series.releases[patch.package] if patch.file_for(x) is not None]
    entry = patch.entry
    return {
        "name": patch.name,
        "package": patch.package,
        "purpose": entry.purpose,
        "optional": entry.optional,
        "caution": entry.caution,
        "enables": entry.enables,
        "needs": list(entry.needs),
        "instead": entry.instead.model_dump() if entry.instead else None,
        "releases": releases,
    }


def _span(releases: Sequence[str]) -> str:
    if len(releases) < 2:
        return "".join(releases)
    return f"{releases[0]} to {releases[-1]}"
