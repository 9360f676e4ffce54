"""The reference page of the lint, made from its rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opsctl.profiles.lint import NOTES, RULES
from opsctl.profiles.lint_model import Rule

HEAD = """# What `opsctl profile lint` finds

<!-- Made from the rules by `python -m opsctl.profiles.lint_reference`; change the rules, not this
page. -->

Each finding has a severity, a code, the key it is about with file, line and column, what happens,
how to repair it, and where that is known from.

- **error**: the engine does not start, or answers wrongly. `opsctl serve` and a switch refuse such
  a profile; `opsctl profile lint` ends with exit code 4.
- **warning**: it starts, and does not do what the profile says.
- **info**: worth knowing.

Versions are those of SGLang; a number such as 0.5.14 includes later ones unless it says so. Rules
whose code begins with `sm120` apply to workstation Blackwell (compute capability 12.x) only.

An error can be overridden by its code, for example when a build of your own has been mended:

```yaml
serve:
  allow_findings: [sm120-fusion-crash]
```

The override is recorded as event [`lint_overridden`](events.md) at every start it lets through.

## JSON

`opsctl profile lint -o json` prints

```json
{
  "schema": "opsctl/profile-lint/v1",
  "findings": [
    {
      "severity": "error",
      "code": "removed-flag",
      "profile": "baseline",
      "key": "flags.cuda-graph-max-bs",
      "message": "SGLang 0.5.23 has no flag `--cuda-graph-max-bs`; ...",
      "fix": "write `cuda-graph-max-bs-decode`",
      "source": "flags of every release, read from the wheels",
      "at": "opsctl.yaml:9:26"
    }
  ]
}
```

`key` is inside the profile, except for `auto_spec...` and `serve...`. `at` is null when the
key is written nowhere. Codes are stable; new ones may be added.

Exit code 0: no errors; 4: errors; 1: the SGLang that was named cannot be read; 2: no such profile
or release; 78: the configuration itself is wrong.
"""
HEADINGS = (("error", "Errors"), ("warning", "Warnings"), ("info", "Notes"))


def reference() -> str:
    """The page as Markdown."""
    return HEAD + "".join(_sections((*NOTES, *RULES)))


def _sections(rules: Iterable[Rule]) -> Iterator[str]:
    listed = list(rules)
    for severity, heading in HEADINGS:
        yield f"\n## {heading}\n\n| code | what happens | fix | known from |\n|---|---|---|---|\n"
        for rule in listed:
            if rule.severity == severity:
                cells = (f"`{rule.code}`", rule.why, rule.fix, rule.source)
                row = " | ".join(cell.replace("|", "\\|") for cell in cells)
                yield f"| {row} |\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference())
