"""`${VAR}`, `${VAR:-default}` and `$$` in values."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PATTERN = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")


class VariableError(ValueError):
    """A reference that cannot be expanded."""


def expand(text: str, environment: Mapping[str, str]) -> str:
    """The text with references replaced from `environment`.

    As in a shell, the default counts for a variable that is unset or empty. A lone `$` stays.
    Raises VariableError when a variable is unset and has no default.
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, default = match[1], match[2]
        if name is None:
            raise VariableError("`${` starts a variable: write ${NAME}, ${NAME:-default} or $${")
        value = environment.get(name)
        if default is not None:
            return value or default
        if value is None:
            raise VariableError(f"variable {name} is not set; set it or write ${{{name}:-default}}")
        return value

    expanded = _PATTERN.sub(replace, text)
    if expanded != text and re.search("[\ud800-\udfff\0]", expanded):
        raise VariableError("the variable's content is not text")
    return expanded
