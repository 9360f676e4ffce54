"""The command line: the table of commands, loaded when used, and the one place that maps errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from opsctl.cli.options import ConfigOption, StateDirOption
from opsctl.errors import ConfigError, OpsctlError


@dataclass(frozen=True)
class Entry:
    """Where a command's code lives and the line `opsctl --help` shows for it."""

    module: str
    attribute: str
    help: str


# How to add a command: write a module in opsctl/cli/ and add one line here. The attribute is
# either a plain typed function (typer makes the options from its signature and the help from its
# docstring) or a `typer.Typer(help=..., rich_markup_mode=None)` for a group of commands. Nothing
# of the module is imported before the command is used, so `opsctl --help` stays fast; inside it,
# import heavy things in the function. Take `--config`, `--state-dir` and `-o` from
# opsctl/cli/options.py, print through opsctl/cli/output.py, and raise OpsctlError to fail.
COMMANDS = {
    "serve": Entry("opsctl.cli.serve", "serve", "Run the engine, supervised, behind the gateway."),
    "demo": Entry("opsctl.cli.demo", "demo", "Show a switch under load with a simulated engine."),
    "status": Entry("opsctl.cli.control", "status", "Show what a running opsctl does and why."),
    "switch": Entry("opsctl.cli.control", "switch", "Replace the serving profile by another."),
    "pause": Entry("opsctl.cli.control", "pause", "Turn automatic switching off, keep serving."),
    "resume": Entry("opsctl.cli.control", "resume", "Turn automatic switching on again."),
    "drain": Entry("opsctl.cli.control", "drain", "Finish requests in flight, admit no new ones."),
    "stop": Entry("opsctl.cli.control", "stop", "Stop the engine and end `opsctl serve`."),
    "reload": Entry("opsctl.cli.control", "reload", "Read the configuration again."),
    "logs": Entry("opsctl.cli.records", "logs", "Show the engine's output."),
    "events": Entry("opsctl.cli.records", "events", "Show the journal of events."),
    "doctor": Entry("opsctl.cli.doctor", "app", "Check whether this host can serve."),
    "gpu": Entry("opsctl.cli.gpu", "app", "Show who holds the GPUs and why."),
    "bench": Entry("opsctl.cli.bench", "app", "Measure launch profiles and compare them."),
    "tune": Entry("opsctl.cli.tune", "tune", "Set opsctl to what was measured on this host."),
    "autospec": Entry("opsctl.cli.autospec", "app", "Find out when speculation pays."),
    "provision": Entry("opsctl.cli.provision", "provision", "Bring hosts up, and prove it."),
    "patch": Entry("opsctl.cli.patch", "app", "Apply and take back SM120 patches of SGLang."),
    "unit": Entry("opsctl.cli.unit", "app", "Make and install the systemd unit of serve."),
    "config": Entry("opsctl.cli.config", "app", "Write, check and explain the configuration."),
    "profile": Entry("opsctl.cli.profile", "app", "List, show and compare launch profiles."),
}


def _load(name: str, entry: Entry) -> Any:
    target = getattr(import_module(entry.module), entry.attribute)
    if isinstance(target, typer.Typer):
        command: Any = typer.main.get_group(target)
        command.name = name
        return command
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(target)
    return typer.main.get_command(app)


class LazyGroup(TyperGroup):
    """A group that knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every command of the table, in its order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and build one command; None when there is no such name."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else _load(cmd_name, entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve as usual, but offer the names of the table in "did you mean"."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(_unknown(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    return f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else "")


def _version(value: bool) -> None:
    if value:
        from opsctl import __version__

        typer.echo(f"opsctl {__version__}")
        raise typer.Exit


app = typer.Typer(cls=LazyGroup, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def root(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    version: bool = typer.Option(
        False, "--version", "-V", is_eager=True, callback=_version, help="Print the version."
    ),
) -> None:
    """Operate SGLang on CUDA 13 / SM120 hosts, driven by one configuration file."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Every error becomes a message on stderr here."""
    try:
        typer.main.get_command(app).main(args=list(arguments), prog_name="opsctl")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except OpsctlError as error:
        _say(_explained(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("OPSCTL_DEBUG"):
            raise
        _say(
            f"error: unexpected {type(error).__name__}: {error}\n"
            "hint: this is a bug in opsctl; set OPSCTL_DEBUG=1 to see where it happened"
        )
        return 1
    return 0


def _explained(error: OpsctlError) -> str:
    lines = [f"error: {error.message}"]
    if isinstance(error, ConfigError):
        # Each problem starts with file:line:col, which editors and terminals make clickable.
        count = len(error.problems)
        found = "1 problem" if count == 1 else f"{count} problems"
        lines = [*map(str, error.problems), f"error: the configuration has {found}"]
    return "\n".join([*lines, f"hint: {error.hint}"] if error.hint else lines)


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
