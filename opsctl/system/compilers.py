"""Programs that build kernels just in time, told by their command line."""

from __future__ import annotations

import re

_COMPILERS = re.compile(
    r"(nvcc|cicc|ptxas(-\w+)?|fatbinary|cudafe\+\+|nvlink|ninja|cc1|cc1plus|collect2"
    r"|([\w.-]+-)?(gcc|g\+\+|cc|c\+\+|ld|as)|clang(\+\+)?|ld\.\w+)(-[\d.]+)?"
)


def is_compiler(title: str) -> bool:
    """Whether a command line is that of a compiler, assembler, linker or build tool."""
    program = title.partition(" ")[0].rpartition("/")[2]
    return bool(_COMPILERS.fullmatch(program)) or "_inductor/compile_worker" in title
