"""`opsctl serve`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.options import ConfigOption, StateDirOption

if TYPE_CHECKING:
    from opsctl.config.schema import Config


def serve(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    auto_spec: Annotated[
        bool, typer.Option("--auto-spec", help="Switch between the two profiles of auto_spec.")
    ] = False,
    observe: Annotated[
        bool, typer.Option("--observe", help="With --auto-spec: decide and record, do not switch.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Use the built-in demo: simulated engines, no file.")
    ] = False,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="Profile to start with.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect.")
    ] = None,
) -> None:
    """Run the engine, supervised, behind the gateway, until `opsctl stop` or SIGTERM.

    Exit codes: 0 stopped, 4 the host is not ready, 69 gave up after repeated failures,
    75 another opsctl serves from this state directory, 78 bad configuration.
    """
    from opsctl.cli.loading import load_config
    from opsctl.config.load import demo as demo_config
    from opsctl.config.state_dir import state_dir as choose_state_dir
    from opsctl.errors import UsageError
    from opsctl.serve.instance import Wishes, run
    from opsctl.serve.places import Places

    if demo and config is not None:
        raise UsageError("--demo and --config exclude each other")

    def load() -> Config:
        return demo_config().config if demo else load_config(config).config

    first = load()
    places = Places(choose_state_dir(state_dir, first, os.environ))
    wishes = Wishes(auto_spec=auto_spec or observe, observe=observe, profile=profile, listen=listen)
    run(load, wishes, places)
