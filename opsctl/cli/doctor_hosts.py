"""`opsctl doctor --host`: the doctor's word on provisioned hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from opsctl.cli.loading import load_config
from opsctl.cli.options import Output
from opsctl.cli.output import emit, grid, message
from opsctl.errors import OpsctlError


def examine_hosts(
    names: Sequence[str], only: Sequence[str], config: str | None, output: Output
) -> None:
    """Ask the doctor of each host, and show what is not as it should be.

    Exit code 4 when a check fails somewhere or a host does not answer.
    """
    from opsctl.provision.inventory import hosts
    from opsctl.provision.remote import ask

    loaded = load_config(config, warn=False).config
    service = loaded.provision.opsctl_service
    argv = [f"{service.path}/bin/opsctl", "doctor", "-o", "json"]
    argv += [word for name in only for word in ("--only", name)]
    found: dict[str, dict[str, Any]] = {}
    for name, host in hosts(loaded, names).items():
        try:
            found[name] = {"checks": ask(host, argv)["checks"], "error": None}
        except (OpsctlError, KeyError) as error:
            found[name] = {"checks": [], "error": str(error)}
            message(f"{name}: {error}")
    rows = [
        (name, check["status"], check["id"], check["value"] or check["why"], check["fix"])
        for name, answer in found.items()
        for check in answer["checks"]
        if check["status"] in {"fail", "warn"}
    ]
    header = ("HOST", "STATUS", "CHECK", "VALUE", "FIX")
    emit(
        {"hosts": found}, output, schema="opsctl/doctor-hosts/v1", table=lambda: grid(header, rows)
    )
    failed = any(x["status"] == "fail" for answer in found.values() for x in answer["checks"])
    if failed or any(answer["error"] for answer in found.values()):
        raise typer.Exit(4)
