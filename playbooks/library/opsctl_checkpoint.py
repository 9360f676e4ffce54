#!/usr/bin/python3
"""Ansible module: checkpoints that are there and whole; what is missing can be downloaded."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.opsctl_host import last, note, write

DOCUMENTATION = r"""
module: opsctl_checkpoint
short_description: Checkpoints that are there and whole
description:
  - A checkpoint is whole when it has a config.json, when every file of its index is there, and
    when every safetensors file is as long as its own header says.
  - A download runs in the background and ends when nobody asks for it any more; each call looks
    after it for RV(wait) seconds. Called again, it goes on where it was.
options:
  models: {type: list, elements: dict, required: true, description: "{path, source, revision}"}
  download: {type: bool, default: false}
  python: {type: path, description: Interpreter whose environment has huggingface_hub.}
  fetcher: {type: path, description: The program that downloads.}
  work: {type: path, default: /var/lib/opsctl-provision/fetch}
  token_file: {type: path, default: /etc/opsctl/hf-token}
  wait: {type: int, default: 20}
  pending: {type: path, description: Beginning of the files for what is left to a person.}
"""
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
HEADER_LIMIT = 100_000_000
"""Longest header that safetensors allows, in bytes."""


def flaws(folder: Path) -> list[str]:
    """What keeps a checkpoint from being whole, in words; none when it is."""
    if not folder.is_dir():
        return ["the folder is not there"]
    found = [] if (folder / "config.json").is_file() else ["config.json is missing"]
    try:
        names = weights(folder)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return [*found, f"its index cannot be read: {error}"]
    if not names:
        return [*found, "there is no weight file"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        found.append(f"{len(missing)} of {len(names)} weight files are missing ({_some(missing)})")
    short = [said for name in names if (said := length(folder / name))]
    return found + short[:3] + ([f"and {len(short) - 3} more"] if len(short) > 3 else [])


def weights(folder: Path) -> list[str]:
    """Names of the weight files: those of the index, else those that are there."""
    for index in INDEXES:
        if (folder / index).is_file():
            content = json.loads((folder / index).read_text(encoding="utf-8"))
            return sorted(set(content["weight_map"].values()))
    return sorted(x.name for x in folder.iterdir() if x.suffix in {".safetensors", ".bin"})


def length(file: Path) -> str:
    """Say what is wrong with the length of a safetensors file; "" when nothing, or no file."""
    if file.suffix != ".safetensors" or not file.is_file():
        return ""
    try:
        with file.open("rb") as stream:
            start = stream.read(8)
            (size,) = struct.unpack("<Q", start) if len(start) == 8 else (HEADER_LIMIT + 1,)
            if size > HEADER_LIMIT:
                return f"{file.name} is not a safetensors file"
            header = json.loads(stream.read(size))
        ends = [x["data_offsets"][1] for name, x in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return f"{file.name} has no readable header"
    wanted, there = 8 + size + max(ends, default=0), file.stat().st_size
    return "" if there == wanted else f"{file.name} has {there} of {wanted} bytes"


def _some(names: list[str]) -> str:
    return ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")


class Download:
    """The one download that runs on the host."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.work = Path(wanted["work"])
        self.lease, self.log = self.work / "lease", self.work / "log"
        self.pid, self.result = self.work / "pid", self.work / "result"

    def tend(self, model: dict[str, Any]) -> str:
        """Start it or keep it going for a while: "" while it runs, else how it ended."""
        self.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(self.lease, "")
        if not self.running():
            self.start(model)
        end = time.monotonic() + self.wanted["wait"]
        while time.monotonic() < end:
            if self.result.exists():
                said = self.result.read_text(encoding="utf-8").strip()
                self.result.unlink()
                return said or "done"
            time.sleep(0.2)
        return ""

    def running(self) -> bool:
        """Whether the process of the last start still lives."""
        try:
            pid = int(self.pid.read_text(encoding="utf-8"))
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return False
        return os.fsencode(self.wanted["fetcher"]) in words

    def start(self, model: dict[str, Any]) -> None:
        """Start it in a session of its own, its output in a file."""
        self.result.unlink(missing_ok=True)
        order = {**model, "token_file": self.wanted["token_file"], "python": self.wanted["python"]}
        write(self.work / "order.json", json.dumps(order))
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", self.wanted["fetcher"], str(self.work)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        write(self.pid, f"{process.pid}\n")

    def said(self) -> str:
        """The last lines of its output."""
        try:
            return last(self.log.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return ""


def size(folder: Path) -> int:
    """Bytes that a folder holds so far, what is half loaded included."""
    return sum(x.stat().st_blocks * 512 for x in folder.rglob("*") if x.is_file())


def main() -> None:
    """Do what the task asks for."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "required": True},
            "download": {"type": "bool", "default": False},
            "python": {"type": "path"},
            "fetcher": {"type": "path"},
            "work": {"type": "path", "default": "/var/lib/opsctl-provision/fetch"},
            "token_file": {"type": "path", "default": "/etc/opsctl/hf-token", "no_log": False},
            "wait": {"type": "int", "default": 20},
            "pending": {"type": "path"},
        },
        supports_check_mode=True,
    )
    wanted: dict[str, Any] = module.params
    wrong = {model["path"]: flaws(Path(model["path"])) for model in wanted["models"]}
    todo = [m for m in wanted["models"] if wrong[m["path"]] and m.get("source")]
    if not wanted["download"] or not todo:
        _told(module, wrong)
        facts = {path: found or "whole" for path, found in wrong.items()}
        module.exit_json(changed=False, complete=True, models=facts)
    if module.check_mode:
        names = ", ".join(model["path"] for model in todo)
        module.exit_json(changed=True, complete=True, msg=f"would download {names}")
    model = todo[0]
    download = Download(wanted)
    ended = download.tend(model)
    if ended not in {"", "done"}:
        module.fail_json(msg=f"{model['source']} was not downloaded: {ended}: {download.said()}")
    left = flaws(Path(model["path"]))
    if ended == "done" and left:
        module.fail_json(
            msg=f"{model['path']} was downloaded and is not whole: {'; '.join(left)}",
        )
    complete = ended == "done" and len(todo) == 1
    if complete:
        _told(module, {**wrong, model["path"]: []})
    so_far = size(Path(model["path"])) / 1e9 if Path(model["path"]).is_dir() else 0.0
    module.exit_json(
        changed=True, complete=complete, msg=f"{model['path']}: {so_far:.1f} GB are there"
    )


def _told(module: AnsibleModule, wrong: dict[str, list[str]]) -> None:
    """Leave a note for each checkpoint that is not whole, and none for others."""
    start = module.params["pending"]
    if start is None:
        return
    names = {f"{start}{path.strip('/').replace('/', '-')}": path for path in wrong}
    for name, path in names.items():
        found = "; ".join(wrong[path])
        text = f"the checkpoint {path} is not whole: {found}" if found else ""
        note(name, text, check=module.check_mode)
    for file in Path(start).parent.glob(f"{Path(start).name}*"):
        if str(file) not in names:
            note(str(file), "", check=module.check_mode)


if __name__ == "__main__":
    main()
