"""The reference page of the doctor, made from its checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opsctl.doctor.checks import driver, gpus, links, peers, serving, stack, system, toolkit
from opsctl.doctor.model import Check

HEAD = """# opsctl doctor

<!-- Made from the checks by `python -m opsctl.doctor.reference`; change the checks, not this
page. -->

    opsctl doctor
    opsctl doctor --only p2p --only acs --python /opt/sglang/bin/python -o json
    opsctl doctor --host gpu1
    opsctl doctor list
    opsctl doctor explain p2p
    opsctl doctor collective --gpus 0,1 --timeout 60s

`opsctl doctor` only reads. It creates no CUDA context (NVML, and of libcuda `cuInit` and
`cuDeviceGet*` only, each in a process of its own that is ended when a call does not return), so it
is safe beside a serving engine. It runs without a GPU and without a configuration.

| status | means |
|---|---|
| `ok` | as wanted |
| `warn` | it will do, but costs something or may break |
| `fail` | the host cannot serve so; exit code 4 |
| `unknown` | it could not be read, and `why` says why; nothing is ok by absence |

Exit code 0: no check failed; 4: one did; 2: no such check; 78: the configuration is wrong. Run it
as root to see the kernel log and the ACS bits of bridges.

What the host must be fit for comes from the configuration: interpreters, checkpoints, ports, GPUs
and variables of every profile that runs SGLang. `--python` names an interpreter to look at instead.
Without a configuration the checks that need it are `unknown`.

## JSON

```json
{
  "schema": "opsctl/doctor/v1",
  "checks": [
    {
      "id": "iommu",
      "status": "warn",
      "severity": "warn",
      "value": "8x DMA-FQ",
      "wanted": "off, or pass-through (identity)",
      "why": "with translation, peer-to-peer over PCIe hangs or corrupts on many boards; ...",
      "fix": "opsctl provision --tags gpu_tuning  # gpu_tuning.iommu: off or pt"
    }
  ]
}
```

`severity` is the worst this check can say. `value` is null when nothing is known, `fix` is null
when nothing is to be done; otherwise it is a command, or begins with `manual:`. Ids are stable; new
ones may be added.

## opsctl doctor collective

Capability tables say OK on hosts whose first collective hangs
(https://github.com/NVIDIA/nccl/issues/1999), so this one tries: two processes of the engine's
interpreter sum a small and a large tensor over NCCL and compare every element. Each try has a
deadline; then both are killed, with everything they started. Where the first try hangs, fails or
sums wrongly, there is a second one with `NCCL_P2P_DISABLE=1`.

| verdict | means | exit code |
|---|---|---|
| `ok` | the sum is right, and NCCL's log names peer-to-peer or no transport | 0 |
| `ok without peer-to-peer` | right only without it, or NCCL itself chose another transport | 0 |
| `hangs` | no try ended in time, or one hung and the other failed | 4 |
| `fails` | an error or a wrong sum both ways | 4 |
| `not possible` | it could not be tried: no torch, no CUDA, an import that takes too long | 4 |

It creates CUDA contexts and uses GPU memory, so it is refused (exit code 4) while something holds
one of the two GPUs, and is no part of `opsctl doctor`. The ranks get no variable of the caller but
the base set an engine gets, so no `NCCL_*`; `CUDA_VISIBLE_DEVICES` is the pair in PCI order.

JSON: `{"schema": "opsctl/doctor-collective/v1", "verdict", "why", "fix", "gpus", "backend",
"python", "left": [pids that could not be ended], "runs": [{"peer_to_peer", "outcome", "seconds",
"stage", "transport", "detail"}]}`. `outcome` is `ok`, `hang`, `wrong sum`, `error` or `impossible`;
`stage` the last one both ranks reached.

## What has not been seen on a GPU

Everything was tried with the real NVML bindings against a fake driver, fake trees of /proc and
/sys, and a stand-in for torch; the collective also with real torch over gloo. Not seen: values of a
real RTX PRO 6000, NCCL's log lines that name the transport, a real hang in the driver, and whether
every board tells BAR1, ACS and AER as assumed here.
"""
GROUPS = (
    ("Driver", driver.CHECKS),
    ("GPUs", gpus.CHECKS),
    ("PCIe", links.CHECKS),
    ("Between GPUs", peers.CHECKS),
    ("Toolkit", toolkit.CHECKS),
    ("Engine environment", stack.CHECKS),
    ("System", system.CHECKS),
    ("Serving", serving.CHECKS),
)


def reference() -> str:
    """The page as Markdown."""
    return HEAD + "".join(line for name, checks in GROUPS for line in _section(name, checks))


def _section(name: str, checks: Iterable[Check]) -> Iterator[str]:
    yield f"\n## {name}\n\n| check | at worst | wanted | why | known from | fix |\n"
    yield "|---|---|---|---|---|---|\n"
    for one in checks:
        wanted = f"{one.title}: {one.wanted}"
        cells = (f"`{one.id}`", one.severity, wanted, one.why, one.source, one.fix)
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |\n"


def _cell(text: str) -> str:
    """Commands of a fix are read in a terminal first; here they are text."""
    ticked = text if text.count("`") == 2 and text[0] == text[-1] == "`" else text.replace("`", "")
    return ticked.replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference())
