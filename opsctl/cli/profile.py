"""`opsctl profile`: list, show and compare launch profiles."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.loading import load_config
from opsctl.cli.options import ConfigOption, Output, OutputOption
from opsctl.cli.output import emit, grid
from opsctl.cli.profile_import import import_command
from opsctl.cli.profile_lint import lint
from opsctl.errors import UsageError

if TYPE_CHECKING:
    from opsctl.config.schema import Config, LaunchProfile

app = typer.Typer(
    help="List, show, compare and check launch profiles.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)

app.command()(lint)

app.command("import")(import_command)

Name = Annotated[str, typer.Argument(metavar="PROFILE", help="Name of a launch profile.")]
EXAMPLE_PORT = 30000
"""Shown where a free port is picked at each start."""


@app.command("list")
def list_profiles(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the launch profiles and what they are used for."""
    from opsctl.profiles.fingerprint import fingerprint

    loaded = load_config(config).config
    rows = [
        {
            "name": name,
            "engine": profile.engine,
            "model": profile.model,
            "draft_model": profile.draft_model,
            "used_as": _uses(loaded, name),
            "fingerprint": fingerprint(profile),
        }
        for name, profile in loaded.profiles.items()
    ]
    headers = ("NAME", "ENGINE", "MODEL", "DRAFT", "USED AS", "FINGERPRINT")
    emit(
        rows,
        output,
        schema="opsctl/profiles/v1",
        table=lambda: grid(headers, [tuple(row.values()) for row in rows]),
    )


def _uses(config: Config, name: str) -> list[str]:
    uses = {
        "serve": config.serve.profile,
        "speculative": config.auto_spec.speculative,
        "baseline": config.auto_spec.baseline,
    }
    return [use for use, profile in uses.items() if profile == name]


@app.command()
def show(
    name: Name,
    shell: Annotated[
        bool, typer.Option("--shell", help="Only one line that starts the engine from a shell.")
    ] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a profile with all it inherits, its command line and its whole environment.

    Secrets are shown as references, never read.
    """
    from opsctl.config.written import shown_variable
    from opsctl.profiles.diff import effective
    from opsctl.profiles.fingerprint import fingerprint
    from opsctl.profiles.launch import plan
    from opsctl.profiles.launch import shell as shell_line

    loaded = load_config(config).config
    profile = _profile(loaded, name)
    port = loaded.serve.engine_port or EXAMPLE_PORT
    planned = plan(profile, port=port, caller_environment=os.environ)
    if shell:
        sys.stdout.write(shell_line(planned) + "\n")
        return
    environment = {
        key: shown_variable(key, value) for key, value in sorted(planned.environment.items())
    }
    facts = {
        "name": name,
        "fingerprint": fingerprint(profile),
        "profile": effective(profile),
        "command": {"argv": planned.argv, "environment": environment},
    }
    emit(facts, output, schema="opsctl/profile/v1")


@app.command()
def diff(
    left: Name, right: Name, config: ConfigOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show every setting in which two profiles differ."""
    from opsctl.profiles.diff import differences

    loaded = load_config(config).config
    found = differences(_profile(loaded, left), _profile(loaded, right))
    rows: list[dict[str, Any]] = [vars(difference) for difference in found]
    emit(
        rows,
        output,
        schema="opsctl/profile-diff/v1",
        table=lambda: grid(
            ("KEY", left.upper(), right.upper()), [tuple(row.values()) for row in rows]
        ),
    )


def _profile(config: Config, name: str) -> LaunchProfile:
    from opsctl.config.extends import suggestion

    if name not in config.profiles:
        raise UsageError(
            f"there is no profile {name!r}{suggestion(name, config.profiles)}",
            hint=f"profiles: {', '.join(config.profiles)}",
        )
    return config.profiles[name]
