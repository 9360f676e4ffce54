#!/usr/bin/python3
"""Ansible module: a Python environment that is exchanged as a whole, never changed in place."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.opsctl_host import HostError, last, note, run, users, write
from ansible.module_utils.opsctl_packages import conflicts, differences, probe

DOCUMENTATION = r"""
module: opsctl_environment
short_description: A Python environment that is exchanged as a whole
description:
  - O(path) is a link to a folder PATH-FINGERPRINT. Another wish is installed into another folder,
    and the link is moved when that is complete, so a failing install leaves the old one in use.
  - While a program runs from it the link stays, and PATH.next points to the new one. With
    O(at_once) the link moves anyway; that suits programs that call their folder by its real name,
    as console scripts do.
options:
  path: {type: path, required: true}
  python: {type: path, default: /usr/bin/python3}
  installer: {type: str, choices: [pip, uv], default: pip}
  requirements: {type: list, elements: str, default: []}
  constraints: {type: str, default: ""}
  wheels: {type: path}
  cuda: {type: str, default: none}
  at_once: {type: bool, default: false}
  state: {type: str, choices: [present, absent], default: present}
  pending: {type: path, description: File for what is left to a person.}
"""
STAMP = ".opsctl-stack.json"
BUILDING = ".opsctl-building"


def fingerprint(wish: dict[str, Any]) -> str:
    """Name a wish: what is to be installed and for which Python, not where it comes from."""
    return hashlib.sha256(json.dumps(wish, sort_keys=True).encode()).hexdigest()[:12]


def digest(requirement: str, *, check: bool = False) -> str:
    """A wheel counts by its content: a rebuilt one of the same version is another wish.

    A check run has not copied it to the host yet.
    """
    if not requirement.endswith(".whl"):
        return requirement
    try:
        content = Path(requirement).read_bytes()
    except OSError as error:
        if check:
            return Path(requirement).name
        raise HostError(f"{requirement}: {error.strerror}") from error
    return f"{Path(requirement).name} {hashlib.sha256(content).hexdigest()}"


class Environments:
    """The folders of one path."""

    def __init__(self, module: AnsibleModule) -> None:
        self.wanted: dict[str, Any] = module.params
        self.check: bool = module.check_mode
        self.link = Path(module.params["path"])
        self.next = self.link.with_name(f"{self.link.name}.next")

    def ours(self) -> list[Path]:
        """Folders that this module made, whole or not, the newest last."""
        name = re.compile(rf"{re.escape(self.link.name)}-[0-9a-f]{{12}}(-[0-9]+)?")
        try:
            beside = list(self.link.parent.iterdir())
        except OSError:
            return []
        found = [x for x in beside if name.fullmatch(x.name) and not x.is_symlink() and x.is_dir()]
        made = [x for x in found if (x / STAMP).is_file() or (x / BUILDING).is_file()]
        return sorted(made, key=lambda folder: folder.stat().st_mtime)

    def target(self, link: Path) -> Path | None:
        """Where a link of ours points; raises HostError for something that is not ours."""
        if link.is_symlink():
            return Path(os.path.realpath(link))
        if link.exists():
            raise HostError(
                f"{link} is there and was not made by opsctl provision: move it away, choose "
                "another path, or set manage: false to use it as it is"
            )
        return None

    def wish(self) -> dict[str, Any]:
        """What is asked for."""
        python = self.wanted["python"]
        asked = run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], timeout=60)
        if asked.returncode:
            raise HostError(f"{python} does not run: {last(asked.stderr)}")
        return {
            "python": f"{python} {asked.stdout.strip()}",
            "requirements": [digest(x, check=self.check) for x in self.wanted["requirements"]],
            "constraints": self.wanted["constraints"],
            "cuda": self.wanted["cuda"],
        }

    def flaws(self, folder: Path | None, mark: str) -> list[str]:
        """Why a folder is not what is wished for; none when it is."""
        if folder is None:
            return ["there is none yet"]
        try:
            stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ["it has no stamp"]
        if stamp["fingerprint"] != mark:
            return ["something else is asked for"]
        try:
            found = probe(folder)
        except HostError as trouble:
            return [str(trouble)]
        moved = differences(stamp["installed"], found["installed"])
        return moved + conflicts(found["installed"], found["torch_cuda"], self.wanted["cuda"])

    def build(self, wish: dict[str, Any], mark: str) -> Path:
        """Install into a new folder; what a failure or a kill leaves is removed."""
        linked = {self.target(self.link), self.target(self.next)}
        for folder in self.ours():
            if (folder / BUILDING).exists() and folder not in linked:
                shutil.rmtree(folder)
        names = [f"{self.link.name}-{mark}{end}" for end in ("", *(f"-{n}" for n in range(2, 99)))]
        folder = next(x for x in map(self.link.with_name, names) if not x.exists())
        folder.mkdir(parents=True)
        write(folder / BUILDING, "")
        try:
            self.install(folder)
            found = probe(folder)
            wrong = conflicts(found["installed"], found["torch_cuda"], self.wanted["cuda"])
            if wrong:
                raise HostError(
                    f"not all packages are of {self.wanted['cuda']}: {', '.join(wrong)}"
                )
        except HostError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        stamp = {"fingerprint": mark, "asked": wish, **found}
        write(folder / STAMP, json.dumps(stamp, indent=1, sort_keys=True) + "\n")
        (folder / BUILDING).unlink()
        return folder

    def install(self, folder: Path) -> None:
        """Make the environment and install all requirements in one go, so that they fit."""
        python = str(folder / "bin/python")
        self.must([self.wanted["python"], "-m", "venv", str(folder)], "make an environment")
        if not self.wanted["requirements"]:
            return
        constraints = folder / ".opsctl-constraints.txt"
        write(constraints, self.wanted["constraints"])
        wheels = self.wanted["wheels"]
        source = ["--no-index", "--find-links", wheels] if wheels else []
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        if self.wanted["installer"] == "uv":
            uv = shutil.which("uv", path=f"{os.environ.get('PATH', '')}:/usr/local/bin")
            if uv is None:
                self.must([*pip, "-q", *source, "uv"], "install uv")
                uv = str(folder / "bin/uv")
            # Copies: hard links into uv's cache would let a patch change the cache as well.
            pip = [uv, "pip", "install", "--python", python, "--link-mode", "copy"]
            pip.append("--compile-bytecode")
        wanted = self.wanted["requirements"]
        what = f"install {' '.join(wanted)}"
        self.must([*pip, "-q", *source, "--constraint", str(constraints), *wanted], what)

    def must(self, argv: list[str], what: str) -> None:
        """Run a step of an installation; raises HostError with what it said."""
        done = run(argv)
        if done.returncode:
            said = last(done.stderr) or last(done.stdout) or f"exit code {done.returncode}"
            raise HostError(f"cannot {what}: {said}\nThe environment in use was not touched.")

    def point(self, link: Path, folder: Path) -> None:
        """Let a link point to a folder, in one step."""
        temporary = link.with_name(f".{link.name}.opsctl")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.name)
        temporary.replace(link)

    def prune(self, before: Path | None) -> None:
        """Keep what is in use, and the one before, to go back to."""
        kept = {self.target(self.link), before}
        for folder in self.ours():
            if folder not in kept and not users(folder):
                shutil.rmtree(folder)


def present(module: AnsibleModule) -> dict[str, Any]:
    """Make the environment what is asked for."""
    here = Environments(module)
    wish = here.wish()
    mark = fingerprint(wish)
    current, prepared = here.target(here.link), here.target(here.next)
    facts = {"fingerprint": mark, "flaws": here.flaws(current, mark)}
    if not facts["flaws"]:
        if prepared is not None and not here.check:
            here.next.unlink()
        note(module.params["pending"], "", check=here.check)
        return {**facts, "changed": prepared is not None, "folder": str(current)}
    whole = (folder for folder in here.ours() if folder != current and not here.flaws(folder, mark))
    ready = next(whole, None)
    user = "" if current is None or module.params["at_once"] else users(current)
    waiting = ready is not None and ready == prepared and bool(user)
    if here.check:
        return {**facts, "changed": not waiting, "diff": _diff(current, wish)}
    folder = ready if ready is not None else here.build(wish, mark)
    done = {**facts, "changed": not waiting, "folder": str(folder)}
    if user:
        here.point(here.next, folder)
        text = f"{here.link}: a new environment is ready and waits for a restart: {user} runs"
        note(module.params["pending"], f"{text} from the present one")
        return {**done, "msg": text}
    here.point(here.link, folder)
    here.next.unlink(missing_ok=True)
    note(module.params["pending"], "")
    here.prune(current)
    return {**done, "diff": _diff(current, wish)}


def absent(module: AnsibleModule) -> dict[str, Any]:
    """Remove every folder that this module made for the path, and its links."""
    here = Environments(module)
    note(module.params["pending"], "", check=here.check)
    links = [link for link in (here.link, here.next) if link.is_symlink()]
    ours = here.ours()
    links = [link for link in links if here.target(link) in ours or not link.exists()]
    for folder in ours:
        user = users(folder)
        if user:
            raise HostError(f"{folder} cannot be removed: {user} runs from it")
    if not here.check:
        for link in links:
            link.unlink()
        for folder in ours:
            shutil.rmtree(folder)
    return {"changed": bool(links or ours)}


def _diff(current: Path | None, wish: dict[str, Any]) -> dict[str, str]:
    before: dict[str, Any] = {}
    if current is not None:
        try:
            before = json.loads((current / STAMP).read_text(encoding="utf-8"))["asked"]
        except (OSError, ValueError, KeyError):
            before = {}
    shown = [json.dumps(x, indent=1, sort_keys=True) + "\n" if x else "" for x in (before, wish)]
    return {"before": shown[0], "after": shown[1]}


def main() -> None:
    """Do what the task asks for."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "installer": {"type": "str", "choices": ["pip", "uv"], "default": "pip"},
            "requirements": {"type": "list", "elements": "str", "default": []},
            "constraints": {"type": "str", "default": ""},
            "wheels": {"type": "path"},
            "cuda": {"type": "str", "default": "none"},
            "at_once": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "pending": {"type": "path"},
        },
        supports_check_mode=True,
    )
    try:
        done = absent(module) if module.params["state"] == "absent" else present(module)
    except HostError as trouble:
        module.fail_json(msg=str(trouble))
    module.exit_json(**done)


if __name__ == "__main__":
    main()
