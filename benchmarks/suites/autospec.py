"""The suite of auto-spec: every policy plays every case; the tables of docs/auto-spec-results.md.

Traces are Azure's of 2023 (conversation and code), looked for in --traces; they are not part of
the project. Surfaces are the simulated engine's tables. Takes about half an hour on two cores; the
same inputs give the same table. With --closed the load is clients that wait for their answers
instead, with the conversation trace's sizes; the table is printed unless it is written.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from opsctl.autospec import suite
from opsctl.autospec.arrivals import Requests
from opsctl.autospec.pair import Pair
from opsctl.autospec.patterns import ALL
from opsctl.autospec.simulate import Outcome
from opsctl.autospec.suite import Case
from opsctl.autospec.suite_report import Result, markdown, result, verdict
from opsctl.autospec.surface import Surface
from opsctl.autospec.traces import read
from opsctl.engine.simulated.surface import surfaces

ROOT = Path(__file__).resolve().parents[2]
TRACES = {
    "conversation": "azure-llm-2023-conversation.csv",
    "code": "azure-llm-2023-code.csv",
}
TABLES = {
    "reference": ("reference_host", "eagle3"),
    "draft14": ("reference_host_draft14", "speculative"),
    "kimi": ("kimi_k26_dcp1", "speculative"),
    "qwen": ("qwen35_397b_mtp2", "speculative"),
}
LOSES = 0.8
MARK = "<!-- below: `make autospec-suite` -->"


def pairs() -> dict[str, Pair]:
    """Pairs of surfaces by name."""
    found = {name: Pair(_surface(*table), _baseline(table[0])) for name, table in TABLES.items()}
    baseline = found["reference"].baseline
    slower = {p.concurrency: p.tok_s * LOSES for p in baseline.points}
    found["loses"] = Pair(suite.surface("draft", {0: slower}, speculative=True), baseline)
    return found


def _baseline(table: str) -> Surface:
    return _surface(table, "baseline")


def _surface(table: str, column: str) -> Surface:
    curves = surfaces().find(f"{table}:{column}").curves
    rows = {
        round(math.expm1(context)): {round(math.exp(n)): math.exp(rate) for n, rate in curve}
        for context, curve in curves
    }
    return suite.surface(column, rows, speculative=column != "baseline")


@cache
def _pair(name: str) -> Pair:
    return pairs()[name]


@cache
def _trace(folder: str, name: str) -> Requests:
    path = Path(folder) / TRACES[name]
    return read(path.read_text(encoding="utf-8"), path.name).requests


_made: dict[tuple[str, str, str], Requests] = {}
_fixed: dict[str, dict[str, Outcome]] = {}
"""Of the load made last: by truth, what fixed profiles make of it, however one switches."""


def _play(work: tuple[str, Case]) -> Result:
    folder, case = work
    key, pair = (case.trace, case.pattern, case.surface), _pair(case.surface)
    if key not in _made:  # cases of one load follow each other
        _made.clear()
        _fixed.clear()
        _made[key] = ALL[case.pattern].requests(_trace(folder, case.trace), pair)
    verdict = suite.play(case, _made[key], pair, _fixed.get(case.truth))
    _fixed[case.truth] = {row.start: row.outcome for row in verdict.rows[:2]}
    return result(verdict)


def _chosen(only: list[str], traces: Mapping[str, str], *, closed: bool) -> Iterator[Case]:
    names = list(pairs())
    for case in suite.closed_cases(names) if closed else suite.all_cases(list(traces), names):
        parts = case.name.split("/")
        if all(any(word in parts for word in words.split(",")) for words in only):
            yield case


def _kept(path: Path) -> dict[str, Result]:
    """Results of an earlier run with the same code."""
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        case = Case(**data.pop("case"))
        data["sustained"] = tuple(data["sustained"])
        found[case.name] = Result(case=case, **data)
    return found


def _write(path: Path, tables: str) -> None:
    """Replace what follows the mark; what stands above it was written by hand."""
    above, mark, _ = path.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"{path} has no line {MARK}")
    path.write_text(f"{above}{mark}\n\n{tables}", encoding="utf-8")


def main() -> None:
    """Play, tell what missed, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of names; a,b means either")
    parser.add_argument("--traces", default=str(ROOT.parent / "shared" / "traces"))
    parser.add_argument("--write", type=Path, help="markdown file to write the table to")
    parser.add_argument("--keep", type=Path, help="results, kept for a run that goes on here")
    parser.add_argument("--closed", action="store_true", help="clients that wait, instead")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    missing = [name for name in TRACES.values() if not (Path(options.traces) / name).is_file()]
    if missing:
        raise SystemExit(f"{options.traces}: no {', '.join(missing)} (Azure's traces of 2023)")
    cases = list(_chosen(options.only, TRACES, closed=options.closed))
    known = {} if options.keep is None else _kept(options.keep)
    todo = [(options.traces, case) for case in cases if case.name not in known]
    with multiprocessing.Pool(options.workers) as pool:
        for found in pool.imap(_play, todo, chunksize=9):
            known[found.case.name] = found
            if options.keep is not None:
                with options.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(found)) + "\n")
            if not found.r1_held or found.r2_held is False:
                print(found.words(), flush=True)
    results = [known[case.name] for case in cases]
    print(markdown(results) if options.closed and not options.write else verdict(results))
    if options.write is not None:
        _write(options.write, markdown(results))


if __name__ == "__main__":
    main()
