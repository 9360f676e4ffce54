#!/usr/bin/python3
"""Ansible module: does CUDA start on this host? Asked in a process of its own, with a deadline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.opsctl_host import last, note, run

DOCUMENTATION = r"""
module: opsctl_cuda
short_description: Does CUDA start on this host
description:
  - Calls cuInit and cuDeviceGetCount, which make no context and are safe beside a live server.
  - Nothing is asked where no NVIDIA driver is loaded.
options:
  deadline: {type: int, default: 60, description: Seconds until it counts as hanging.}
  gpus: {type: path, default: /proc/driver/nvidia/gpus, description: Where the driver lists GPUs.}
  pending: {type: path, description: File for what is left to a person.}
"""
PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(-1)
code = cuda.cuInit(0)
code = code or cuda.cuDeviceGetCount(ctypes.byref(count))
print(code, count.value)
"""
CURES = {
    3: "the driver is there, CUDA does not start: with open kernel modules this was seen to end "
    "with gpu_tuning.disable_hmm and a reboot "
    "(https://github.com/NVIDIA/open-gpu-kernel-modules/issues/947)",
    100: "it sees no GPU: see `dmesg` for NVRM and Xid lines",
    802: "the system is not ready: a fabric manager is asked for that PCIe boards do not have",
    803: "driver and its libraries are of different versions: reboot",
    999: "an unknown error: see `dmesg` for NVRM and Xid lines; a reboot mostly helps",
}
"""CUresult codes of cuda.h, and what is known to end them."""


def verdict(code: int, out: str, err: str, listed: int) -> str:
    """Say what is wrong, in one sentence; "" when CUDA starts and counts what the driver lists."""
    if code == 124:
        return f"CUDA does not start: {err}; see `dmesg` for NVRM and Xid lines"
    words = out.split()
    if code or len(words) != 2:
        return f"CUDA cannot be asked: {last(err, 1) or f'exit code {code}'}"
    result, count = map(int, words)
    if result:
        return f"CUDA does not start: error {result}: {CURES.get(result, 'see cuda.h')}"
    if count != listed:
        return f"CUDA counts {count} GPUs, the driver lists {listed}: see `dmesg` for Xid lines"
    return ""


def main() -> None:
    """Do what the task asks for."""
    module = AnsibleModule(
        argument_spec={
            "deadline": {"type": "int", "default": 60},
            "gpus": {"type": "path", "default": "/proc/driver/nvidia/gpus"},
            "pending": {"type": "path"},
        },
        supports_check_mode=True,
    )
    wanted: dict[str, Any] = module.params
    folder = Path(wanted["gpus"])
    listed = len(list(folder.iterdir())) if folder.is_dir() else 0
    if not listed:
        note(wanted["pending"], "", check=module.check_mode)
        module.exit_json(changed=False, msg="no NVIDIA driver is loaded: CUDA was not asked")
    done = run([sys.executable, "-I", "-c", PROBE], timeout=wanted["deadline"])
    wrong = verdict(done.returncode, done.stdout, done.stderr, listed)
    note(wanted["pending"], wrong, check=module.check_mode)
    module.exit_json(changed=False, msg=wrong or f"CUDA starts and counts {listed} GPUs")


if __name__ == "__main__":
    main()
