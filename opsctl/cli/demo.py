"""`opsctl demo`."""

from __future__ import annotations

import typer

from opsctl.cli.options import Output, OutputOption
from opsctl.cli.output import emit, message


def demo(output: OutputOption = Output.TABLE) -> None:
    """Show a switch under load: one stream, forty, one again, against simulated engines.

    Runs a real `opsctl serve --auto-spec --demo` with real requests; only the GPU work is
    simulated. Exit code 0 when both switches happened and no request failed.
    """
    import asyncio

    from opsctl.bench.demonstration import run

    verdict = asyncio.run(run(message))
    rows = {
        "requests": verdict.requests,
        "failed": verdict.failed,
        "tokens": verdict.tokens,
        "switches": [
            f"{s['source']} -> {s['target']} in {s['seconds']} s" for s in verdict.switches
        ],
        "serve exit code": verdict.serve_exit_code,
        "reasons": list(verdict.reasons),
        "seconds": verdict.seconds,
        "verdict": "nothing lost" if verdict.ok else "NOT as it should be",
    }
    if output is Output.TABLE:
        emit(rows, output, schema="opsctl/demo/v1")
    else:
        emit(verdict.document(), output, schema="opsctl/demo/v1")
    raise typer.Exit(0 if verdict.ok else 1)
