#!/usr/bin/python3
"""Ansible module: patches of `opsctl patch` in the engine's environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.opsctl_host import HostError, document, note, users

DOCUMENTATION = r"""
module: opsctl_patches
short_description: Patches of opsctl patch in the engine's environment
description:
  - Applies what is named and can be applied, and checks all that is applied to the byte.
  - Where an environment was prepared for the next start (PREFIX.next), that one is patched.
  - Nothing is changed while an engine runs from the environment.
options:
  opsctl: {type: path, required: true}
  python: {type: path, required: true}
  names: {type: list, elements: str, default: []}
  cache_dir: {type: path, description: Folder of the caches of all stacks.}
  state: {type: str, choices: [present, absent], default: present}
  pending: {type: path, description: File for what is left to a person.}
"""
PRECONDITION = 4
"""Exit code of opsctl: something on the host is in the way."""
UNKNOWN = "unknown until opsctl and the engine's environment are on the host"


class Patches:
    """The environment's patches, seen through opsctl."""

    def __init__(self, module: AnsibleModule) -> None:
        self.wanted: dict[str, Any] = module.params
        self.check: bool = module.check_mode
        self.python = _prepared(module.params["python"])
        self.prefix = Path(self.python).parent.parent

    def ask(self, verb: str, names: list[str], *options: str) -> tuple[int, dict[str, Any], str]:
        """Call a verb of `opsctl patch` for some patches."""
        only = [word for name in names for word in ("--only", name)]
        argv = [self.wanted["opsctl"], "patch", verb, "--python", self.python, *only, *options]
        return document([*argv, "-o", "json"])

    def states(self) -> dict[str, tuple[str, str]]:
        """State and reason of every named patch."""
        code, found, said = self.ask("status", self.wanted["names"])
        if code:
            raise HostError(f"the state of the patches cannot be read: {said}")
        return {x["name"]: (x["state"], x["reason"] or "") for x in found["patches"]}

    def change(self, verb: str, names: list[str]) -> bool:
        """Apply or revert, and say whether files changed."""
        # A dry run ends with 3 where something would change; builds of the old files are stale.
        options = ["--dry-run"] if self.check else []
        code, found, said = self.ask(verb, names, *options, *self.caches())
        if code not in ({0, 3} if self.check else {0}):
            raise HostError(f"`opsctl patch {verb}` failed: {said}")
        return bool(found.get("changed"))

    def caches(self) -> list[str]:
        """FlashInfer's cache of this stack, when there is one."""
        try:
            stamp = json.loads((self.prefix / ".opsctl-stack.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        base = Path(self.wanted["cache_dir"] or "/nonexistent", stamp["fingerprint"])
        cache = base / ".cache/flashinfer"
        return ["--jit-cache", str(cache)] if cache.is_dir() else []

    def verify(self, names: list[str]) -> None:
        """Raise HostError when what is applied is not whole."""
        code, found, said = self.ask("verify", names)
        if code:
            wrong = [f"{x['name']}: {x['path']} {x['what']}" for x in found.get("findings", ())]
            raise HostError(f"patches are not whole: {'; '.join(wrong) or said}")


def _prepared(python: str) -> str:
    prefix = Path(python).parent.parent
    following = prefix.with_name(f"{prefix.name}.next") / "bin" / Path(python).name
    return str(following) if following.exists() else python


def present(here: Patches) -> dict[str, Any]:
    """Apply what is named and can be; raises HostError for what cannot."""
    states = here.states()
    drifted = [f"{name}: {why}" for name, (state, why) in states.items() if state == "drifted"]
    if drifted:
        raise HostError(
            f"files were changed by somebody else: {'; '.join(drifted)}; see `opsctl patch status "
            f"--python {here.python} --diff`"
        )
    todo = [name for name, (state, _) in states.items() if state == "applicable"]
    blocked = {name: why for name, (state, why) in states.items() if state == "blocked"}
    user = users(here.prefix) if todo or blocked else ""
    if (todo or blocked) and user:
        waiting = ", ".join(sorted({*todo, *blocked}))
        text = f"patches {waiting} wait for a restart: {user} runs from {here.prefix}"
        note(here.wanted["pending"], text, check=here.check)
        return {"changed": False, "msg": text}
    if blocked:
        reasons = "; ".join(f"{name}: {why}" for name, why in blocked.items())
        raise HostError(f"patches cannot be applied: {reasons}")
    changed = here.change("apply", todo) if todo else False
    note(here.wanted["pending"], "", check=here.check)
    applied = [name for name, (state, _) in states.items() if state in {"applied", "applicable"}]
    if applied and not (here.check and todo):
        here.verify(applied)
    return {"changed": changed, "patches": {name: state for name, (state, _) in states.items()}}


def absent(here: Patches) -> dict[str, Any]:
    """Take back what is named and applied."""
    note(here.wanted["pending"], "", check=here.check)
    applied = [name for name, (state, _) in here.states().items() if state == "applied"]
    return {"changed": here.change("revert", applied) if applied else False}


def main() -> None:
    """Do what the task asks for."""
    module = AnsibleModule(
        argument_spec={
            "opsctl": {"type": "path", "required": True},
            "python": {"type": "path", "required": True},
            "names": {"type": "list", "elements": "str", "default": []},
            "cache_dir": {"type": "path"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "pending": {"type": "path"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    here = Patches(module)
    there = os.access(wanted["opsctl"], os.X_OK) and os.access(here.python, os.X_OK)
    if not wanted["names"]:
        note(wanted["pending"], "", check=module.check_mode)
        module.exit_json(changed=False, msg="no patch is asked for")
    if not there and (module.check_mode or wanted["state"] == "absent"):
        module.exit_json(changed=False, msg=UNKNOWN if wanted["state"] == "present" else "gone")
    try:
        done = absent(here) if wanted["state"] == "absent" else present(here)
    except HostError as trouble:
        module.fail_json(msg=str(trouble))
    module.exit_json(**done)


if __name__ == "__main__":
    main()
