"""The process that asks libcuda about devices: cuInit and cuDeviceGet* only, never a context.

Run as `python -m opsctl.doctor.cuda_helper`; see opsctl/doctor/disposable.py for what it writes.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from opsctl.doctor.nvml_helper import write

LIBRARY = "libcuda.so.1"
ATTRIBUTES = {"posix_handles": 103, "gpudirect_vmm": 110, "multicast": 132}
"""CUdevice_attribute, as in cuda.h."""
NATIVE_ATOMICS = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED."""
_ERRORS = {
    3: "not initialized",
    34: "the library is a stub",
    100: "no device",
    802: "system not ready",
    803: "driver and library do not match",
    999: "unknown error",
}


class Reading:
    """One pass over all devices; a call that fails gives null."""

    def __init__(self, cuda: Any, output: int) -> None:
        self._cuda = cuda
        self._output = output

    def run(self) -> None:
        """Read version, devices and pairs."""
        if code := self._code("cuInit", 0):
            write(self._output, {"failed": f"cuInit: {_ERRORS.get(code, f'error {code}')}"})
            return
        write(self._output, {"version": self._number("cuDriverGetVersion")})
        count = self._number("cuDeviceGetCount") or 0
        handles = {n: self._number("cuDeviceGet", n) for n in range(count)}
        known = {n: handle for n, handle in handles.items() if handle is not None}
        for index, handle in known.items():
            values = {
                name: self._number("cuDeviceGetAttribute", attribute, handle)
                for name, attribute in ATTRIBUTES.items()
            }
            write(self._output, {"device": index, **values})
        for first, one in known.items():
            for second, other in known.items():
                if first != second:
                    self._pair(first, second, one, other)
        write(self._output, {"end": True})

    def _pair(self, first: int, second: int, one: int, other: int) -> None:
        access = self._number("cuDeviceCanAccessPeer", one, other)
        atomics = self._number("cuDeviceGetP2PAttribute", NATIVE_ATOMICS, one, other)
        write(self._output, {"pair": [first, second], "access": access, "native_atomics": atomics})

    def _number(self, name: str, *arguments: int) -> int | None:
        """Call a function whose first argument takes its answer."""
        answer = ctypes.c_int(0)
        return None if self._code(name, ctypes.byref(answer), *arguments) else answer.value

    def _code(self, name: str, *arguments: Any) -> int:
        write(self._output, {"call": name})
        try:
            return int(getattr(self._cuda, name)(*arguments))
        except AttributeError:
            return -1


def main() -> None:
    """Answer once."""
    output = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not end up in the answer
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:
        write(output, {"failed": f"{LIBRARY} cannot be loaded: {error}"})
        return
    Reading(cuda, output).run()


if __name__ == "__main__":
    main()
