"""The documentation says what the code does: events, status, exit codes, links, command lines."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main

import opsctl
from opsctl.autospec.load import LoadSample
from opsctl.autospec.mechanism import Choice
from opsctl.autospec.plan import Plan
from opsctl.autospec.policy import Decision
from opsctl.cli.main import app
from opsctl.config.load import demo, load_text
from opsctl.engine.process import EngineProcess
from opsctl.engine.release import UnknownMemory
from opsctl.engine.start import RunningEngine
from opsctl.observe.events import Journal
from opsctl.serve.automation import Automation, Judgement, Prepared
from opsctl.serve.failures import Failures
from opsctl.serve.gateway import Gateway
from opsctl.serve.places import Places
from opsctl.serve.state import Phase, State, Switching
from opsctl.serve.status import status
from opsctl.serve.supervisor import LastFailure, Supervisor
from opsctl.serve.watch import Look

ROOT = Path(__file__).parents[2]
LIFECYCLE = ROOT / "opsctl" / "serve" / "lifecycle.py"
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
CODE = re.compile(r"`([^`]+)`")


def rows(page: str) -> Iterator[list[str]]:
    """Cells of the rows of all tables of a reference page, header rows included."""
    for line in (DOCS / "reference" / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


# --- events ------------------------------------------------------------------------------------

RECORDERS = {"record", "_record", "Record"}
FORWARDED = {"effect.event", "self"}
"""Where a name is passed on that was given somewhere else."""
JOURNALS = {"self", "journal", "_journal", "_floor"}
"""Whose `record` is the journal's for certain, so that every name must be readable."""
SPREAD = {"switching.took(now)": set(Switching("", "", "", 0.0).took(0.0))}


def recorded() -> dict[str, set[str]]:
    """Every event the code records, with its facts, read from the source."""
    events: dict[str, set[str]] = {}
    for path in sorted(Path(opsctl.__file__).parent.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for name in _names(node, tree):
                    events.setdefault(name, set()).update(_facts(node))
    return events


def _names(call: ast.Call, tree: ast.Module) -> Iterator[str]:
    function = call.func
    name = getattr(function, "attr", None) or getattr(function, "id", None)
    if name in RECORDERS:
        if call.args and ast.unparse(call.args[0]) not in FORWARDED:
            owner = getattr(function, "value", None)
            last = getattr(owner, "attr", None) or getattr(owner, "id", None)
            yield from _words(call.args[0], tree, certain=name == "Record" or last in JOURNALS)
        return
    for given, following in zip(call.args, call.args[1:], strict=False):
        if getattr(given, "attr", None) in RECORDERS:  # handed over to be called later
            yield from _words(following, tree, certain=False)


def _words(node: ast.expr, tree: ast.Module, *, certain: bool) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(word)):
            yield word
        case ast.IfExp():
            yield from _words(node.body, tree, certain=certain)
            yield from _words(node.orelse, tree, certain=certain)
        case ast.Name() if _is_record(node, tree):
            return  # `Record(...)` in a variable: seen where it is made
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id="phase")]):
            yield from _phases_of_exit(ast.parse(LIFECYCLE.read_text()))
        case _ if certain:
            pytest.fail(f"an event whose name cannot be read: {ast.unparse(node)}")


def _is_record(node: ast.Name, tree: ast.Module) -> bool:
    return any(
        isinstance(found, ast.Assign)
        and isinstance(found.value, ast.Call)
        and getattr(found.value.func, "id", "") == "Record"
        and any(isinstance(t, ast.Name) and t.id == node.id for t in found.targets)
        for found in ast.walk(tree)
    )


def _phases_of_exit(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "end":
            yield str(Phase[ast.unparse(node.args[1]).removeprefix("Phase.")])


def _facts(call: ast.Call) -> set[str]:
    facts: set[str] = set()
    for keyword in call.keywords:
        facts |= {keyword.arg} if keyword.arg else _spread(keyword.value)
    return facts


def _spread(node: ast.expr) -> set[str]:
    """Facts given as `**something`: a known call, or a function that returns a dict literal."""
    text = ast.unparse(node)
    if text in SPREAD:
        return SPREAD[text]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        for path in Path(opsctl.__file__).parent.rglob("*.py"):
            for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(found, ast.FunctionDef) and found.name == node.func.id:
                    return {
                        str(ast.literal_eval(key))
                        for part in ast.walk(found)
                        if isinstance(part, ast.Return) and isinstance(part.value, ast.Dict)
                        for key in part.value.keys
                        if key is not None
                    }
    pytest.fail(f"facts that cannot be read: **{text}")


def described_events() -> dict[str, set[str]]:
    events: dict[str, set[str]] = {}
    for cells in rows("events.md"):
        names = CODE.findall(cells[0])
        if len(cells) == 3 and names:
            assert names[0] not in events, f"{names[0]} is described twice"
            events[names[0]] = set(CODE.findall(cells[2]))
    return events


def test_every_recorded_event_is_described_and_every_described_one_is_recorded() -> None:
    described, found = set(described_events()), set(recorded())
    assert sorted(found - described) == [], "recorded, but not in events.md"
    assert sorted(described - found) == [], "in events.md, but never recorded"


def test_every_fact_of_an_event_is_described() -> None:
    described, found = described_events(), recorded()
    missing = {
        name: sorted(facts - described[name])
        for name, facts in found.items()
        if name in described and facts - described[name]
    }
    assert missing == {}


def test_no_event_is_described_with_a_fact_it_has_not() -> None:
    described, found = described_events(), recorded()
    invented = {
        name: sorted(facts - found[name])
        for name, facts in described.items()
        if name in found and facts - found[name]
    }
    assert invented == {}


def test_the_kinds_of_failure_are_described() -> None:
    from opsctl.engine.markers import FailureKind

    first_cells = " ".join(cells[0] for cells in rows("events.md"))
    start = ast.parse((ROOT / "opsctl/engine/start.py").read_text(encoding="utf-8"))
    kinds = {
        node.args[0].value
        for node in ast.walk(start)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "_failure"
        and isinstance(node.args[0], ast.Constant)
    }
    assert kinds
    wanted = kinds | set(FailureKind.__args__)  # type: ignore[attr-defined]
    assert wanted - set(CODE.findall(first_cells)) == set()


# --- status ------------------------------------------------------------------------------------

OPEN_MAPPINGS = {"engine.stages", "last_decision.numbers", "quarantine", "watchdog.costs"}
"""Their keys are data."""
TYPES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("true or false", (bool,)),
    ("whole number", (int,)),
    ("number", (int, float)),
    ("text", (str,)),
    ("list", (list,)),
    ("mapping", (dict,)),
)


class _Tree:
    """Stands for the processes of an engine."""

    def __init__(self) -> None:
        self.identity = type("Identity", (), {"pid": 4711})()

    @property
    def last_members(self) -> tuple[object, ...]:
        return (object(), object())


def supervisor_that_serves(directory: Path) -> Supervisor:
    """A supervisor with an engine, a switch under way, a decision and a quarantined profile."""
    config = demo().config
    journal = Journal(directory / "events.jsonl")
    gateway = Gateway(config.serve.gateway, api_key=None, record=journal.record)
    automation = Automation(config.auto_spec, enabled=True, record=journal.record)
    decision = Decision("switch", "baseline", "busy", {"demand": 9})
    state = State(
        phase=Phase.SERVING,
        profile="eagle3",
        ready_at=0.0,
        switching=Switching("eagle3", "baseline", "operator", 0.0),
        failures=Failures(quarantine={"baseline": 1e6}),
    )
    supervisor = Supervisor(
        config,
        Places(directory),
        journal=journal,
        gateway=gateway,
        automation=automation,
        state=state,
        cgroup_parent=None,
    )
    plan = Plan(policy="cost_aware", speculative="eagle3", baseline="baseline", blind="no file")
    automation.adopt(Prepared(plan, Choice("restart")))
    automation.last = Judgement(supervisor.clock(), decision, ())
    supervisor.last_failure = LastFailure(0.0, "eagle3", "hang", "nothing moved")
    sample = LoadSample(0.0, running=1, queued=2, accept_length=2.4)
    supervisor.look = Look(sample, speculative_steps=3)
    supervisor.keeper.engine = RunningEngine(
        name="eagle3",
        profile=config.profiles["eagle3"],
        port=30000,
        process=cast(EngineProcess, _Tree()),
        client=cast(Any, None),
        log=cast(Any, None),
        memory=UnknownMemory(),
        fingerprint="sha256:0",
        stages={"ready": 1.0},
        missing_markers=("text",),
    )
    return supervisor


def supervisor_that_begins(directory: Path) -> Supervisor:
    """One that has nothing yet: whatever may be null, is."""
    supervisor = supervisor_that_serves(directory)
    supervisor.state = State(phase=Phase.STARTING)
    supervisor.keeper.engine = supervisor.look = supervisor.automation.last = None
    supervisor.last_failure = None
    supervisor.automation.enabled = False
    return supervisor


async def status_of(supervisor: Supervisor) -> dict[str, object]:
    await supervisor.gateway.start("127.0.0.1:0")
    try:
        return dict(_fields(status(supervisor), ""))
    finally:
        await supervisor.gateway.stop()


def _fields(document: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        name = f"{prefix}{key}"
        yield name, value
        if isinstance(value, dict) and name not in OPEN_MAPPINGS:
            yield from _fields(value, f"{name}.")


def described_fields() -> dict[str, str]:
    fields = {}
    for cells in rows("status.md"):
        if len(cells) == 3 and cells[1] not in {"Type", "Gate"} and CODE.fullmatch(cells[0]):
            name = cells[0].strip("`")
            if name not in {str(phase) for phase in Phase}:
                fields[name] = cells[1]
    return fields


async def test_every_field_of_the_status_document_is_described(tmp_path: Path) -> None:
    fields, described = set(await status_of(supervisor_that_serves(tmp_path))), described_fields()
    assert sorted(fields - set(described)) == [], "not in status.md"
    assert sorted(set(described) - fields) == [], "in status.md only"


@pytest.mark.parametrize("made", [supervisor_that_serves, supervisor_that_begins])
async def test_fields_have_the_types_that_are_described(made: Any, tmp_path: Path) -> None:
    described = described_fields()
    wrong = {
        name: f"{value!r} is not {described[name]}"
        for name, value in (await status_of(made(tmp_path))).items()
        if not _fits(value, described[name])
    }
    assert wrong == {}


def _fits(value: object, described: str) -> bool:
    if value is None:
        return described.endswith(" or null")
    kinds = next(kinds for word, kinds in TYPES if described.startswith(word))
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def test_every_state_is_described() -> None:
    described = {cells[0].strip("`") for cells in rows("status.md") if len(cells) == 3}
    assert {str(phase) for phase in Phase} - described == set()


# --- exit codes --------------------------------------------------------------------------------


def every_error() -> dict[str, int]:
    """Heirs of OpsctlError by name, with the exit code each one ends in, read from the source."""
    parents: dict[str, str] = {}
    codes: dict[str, int] = {}
    for path in Path(opsctl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.bases:
                parents[node.name] = ast.unparse(node.bases[0])
                for code in _own_code(node):
                    codes[node.name] = code
    return {name: code for name in parents if (code := _code(name, parents, codes)) is not None}


def _own_code(node: ast.ClassDef) -> Iterator[int]:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "exit_code":
            yield ast.literal_eval(statement.value)


def _code(name: str, parents: Mapping[str, str], codes: Mapping[str, int]) -> int | None:
    found = None
    while name in parents:
        found = codes.get(name) if found is None else found
        if name == "OpsctlError":
            return found
        name = parents[name]
    return None


def test_every_error_stands_beside_its_exit_code() -> None:
    described = {
        name: int(cells[0])
        for cells in rows("exit-codes.md")
        if len(cells) == 4 and cells[0].isdigit()
        for name in CODE.findall(cells[2])
    }
    assert described == every_error()
    assert described["ReleaseError"] == 4  # inherited


def test_restart_rules_name_every_exit_code_of_serve() -> None:
    text = (DOCS / "reference/exit-codes.md").read_text(encoding="utf-8")
    [prevented] = re.findall(r"RestartPreventExitStatus=([\d ]+)", text)
    table = text.split("## In a systemd unit")[1].split("\n\n    [Unit]")[0]
    verdicts = dict(re.findall(r"^\| (\d+) \| (yes|no) \|", table, re.MULTILINE))
    by_restart = {code for code, verdict in verdicts.items() if verdict == "no"} - {"0"}
    assert set(prevented.split()) == by_restart
    assert {int(code) for code in verdicts} >= set(every_error().values()) - {5}


# --- links -------------------------------------------------------------------------------------

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


def test_the_index_leads_to_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / target).resolve() for target in LINK.findall(index.read_text("utf-8"))}
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {index.resolve()}
    assert sorted(str(page.relative_to(DOCS)) for page in pages - linked) == []


# --- command lines -----------------------------------------------------------------------------

FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
ENDS = {"|", ">", ">>", "&&", "||", ";", "&", "2>", "2>&1"}


def command_lines(page: Path) -> Iterator[tuple[str, bool]]:
    """Every `opsctl ...` that is shown, and whether it stands in a line of its own."""
    text = page.read_text(encoding="utf-8")
    blocks = [*FENCE.findall(text), *re.findall(r"(?:^(?: {4}|\t).*\n?)+", text, re.MULTILINE)]
    for block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            command = re.match(
                r"\s*(?:\$ )?(?:sudo )?(?:\w+=\S+ )*(?:ExecStart=)?(?:[\w./]*/)?(opsctl(?: .*)?)$",
                line,
            )
            if command:
                yield command[1], True
    for code in CODE.findall(FENCE.sub("", text)):
        line = " ".join(code.split())
        if re.match(r"opsctl( |$)", line):
            yield line, False


def words_of(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    end = next((i for i, word in enumerate(words) if word in ENDS), len(words))
    return words[1:end]


def complaint(line: str, *, whole: bool) -> str | None:
    """What the command line itself says about these words; None when it takes them."""
    command: Any = typer.main.get_command(app)
    context: Any = None
    words = words_of(line)
    try:
        while True:
            name = "opsctl" if context is None else words.pop(0)
            context = command.make_context(name, words, parent=context)
            words = [*context._protected_args, *context.args]
            if not hasattr(command, "resolve_command") or not words:
                return None
            _, command, rest = command.resolve_command(context, words)
            words = [words[0], *rest]
    except Exception as error:  # typer's own copies of click's exceptions have no public names
        kind = type(error).__name__
        if kind in {"Exit", "NoArgsIsHelpError"} or (kind == "MissingParameter" and not whole):
            return None
        return f"{line}: {error!r} {getattr(error, 'message', '')}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_can_be_typed(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [complaint(line, whole=whole) for line, whole in command_lines(page)]
    assert [text for text in wrong if text] == []


def test_command_lines_are_found_and_wrong_ones_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`opsctl\nstatus`\n\n    $ opsctl stop  # end\n\n```sh\nopsctl logs | cat\n```\n"
    )
    assert sorted(command_lines(page)) == [
        ("opsctl logs | cat", True),
        ("opsctl status", False),
        ("opsctl stop  # end", True),
    ]
    assert complaint("opsctl stop  # end", whole=True) is None
    assert complaint("opsctl config show --origin", whole=True) is None
    for wrong in ("opsctl stpo", "opsctl stop --nowait", "opsctl config shwo", "opsctl switch"):
        assert complaint(wrong, whole=True), wrong


# --- configurations ----------------------------------------------------------------------------


def configurations() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            first = next((line for line in block.splitlines() if not line.startswith("#")), "")
            if first.startswith("profiles:"):
                yield page.name, block


@pytest.mark.parametrize(("page", "block"), list(configurations()))
def test_configurations_are_valid(page: str, block: str) -> None:
    loaded = load_text(block, name=page, environment={})
    assert loaded.warnings == ()
