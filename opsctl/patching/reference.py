"""For maintainers: the table of docs/patches.md, made from the series.

python -m opsctl.patching.reference docs/patches.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from opsctl.patching.series import Patch, Series, load

BEGIN = "<!-- made by `python -m opsctl.patching.reference docs/patches.md` -->"
END = "<!-- end of what is made -->"


def table(series: Series) -> str:
    """Return which patch file is for which release, and why a release needs none."""
    return "\n".join(_lines(series)) + "\n"


def _lines(series: Series) -> Iterator[str]:
    for package, releases in series.releases.items():
        patches = [patch for patch in series.patches if patch.package == package]
        yield f"### {package}\n"
        yield "| release | " + " | ".join(f"`{patch.name}`" for patch in patches) + " |"
        yield "|---" * (len(patches) + 1) + "|"
        for version in releases:
            cells = " | ".join(_cell(patch, version) for patch in patches)
            yield f"| {version} | {cells} |"
        yield ""
        for patch in patches:
            for other in patch.entry.otherwise:
                yield f"- `{patch.name}` {other.releases}: {other.state}. {other.why}."
            instead = patch.entry.instead
            if instead is not None:
                how = f"rather `{instead.use}`: {instead.why}"
                yield f"- `{patch.name}` {instead.releases}: {how}."
        yield ""


def _cell(patch: Patch, version: str) -> str:
    file = patch.file_for(version)
    if file is not None:
        return file.name.partition("-")[0]
    other = patch.otherwise(version)
    return other.state if other is not None else "none"


def filled(page: str, series: Series) -> str:
    """Return a page with its table made anew; raises ValueError without the marks."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{table(series).rstrip()}\n\n{END}{tail}"


def main(arguments: Sequence[str]) -> int:
    """Make the table of the given page anew."""
    page = Path(arguments[0])
    page.write_text(filled(page.read_text(encoding="utf-8"), load()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
