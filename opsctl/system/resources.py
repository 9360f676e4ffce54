"""Find the data trees that ship with opsctl: `playbooks/`, `templates/` and `patches/`.

In an installed wheel they lie inside the package (`opsctl/_data/`), in a checkout beside it.
"""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Literal

Tree = Literal["playbooks", "templates", "patches"]


def tree(name: Tree) -> Traversable:
    """Return the folder `name` of this installation.

    Raises FileNotFoundError when the installation is incomplete. What needs real paths (Ansible,
    `git apply`) passes the result through `importlib.resources.as_file`.
    """
    package = resources.files("opsctl")
    # The wheel's copy comes first: beside an installed package lies site-packages, where a folder
    # of the same name can belong to anyone.
    candidates = (package.joinpath("_data", name), package.joinpath("..", name))
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"opsctl's {name} folder is missing: the installation is incomplete")
