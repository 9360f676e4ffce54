#!/usr/bin/python3
"""Ansible module: instances of opsctl's service run, and run with what is on the disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.opsctl_host import (
    HostError,
    activate,
    config,
    document,
    last,
    note,
    properties,
    run,
    status,
    unit,
    write,
)

DOCUMENTATION = r"""
module: opsctl_instance
short_description: Instances of opsctl's service run, and run with what is on the disk
description:
  - Starts what is stopped, without waiting until it is ready.
  - An instance that runs with older files is left alone and noted, or drained and restarted.
  - Environments that were prepared (PATH.next) take their place when nothing runs from them.
options:
  instances: {type: list, elements: str, required: true, description: Names; "" is the only one.}
  config_dir: {type: path, default: /etc/opsctl}
  state: {type: str, choices: [present, absent], default: present}
  environments: {type: list, elements: path, default: []}
  opsctl: {type: path, required: true}
  restart: {type: str, choices: [if-stopped, if-changed], default: if-stopped}
  known: {type: path, default: /var/lib/opsctl-provision/running.json}
  pending: {type: path, description: Beginning of the files for what is left to a person.}
"""
MARK = "# Managed by opsctl"
TMPFILES = "/etc/tmpfiles.d/opsctl.conf"
UNITS = "/etc/systemd/system"
RUNNING = frozenset({"active", "activating", "reloading"})


def state(name: str) -> dict[str, str]:
    """What systemd says of a unit."""
    found = properties(name)
    if not found:
        raise HostError("systemd does not answer: is it what runs this host?")
    return found


def files_of(instance: str, folder: str) -> list[str]:
    """Files that an instance reads when it begins: its configuration and its unit's parts."""
    own, name = config(instance, folder), unit(instance)
    template = "opsctl@.service" if instance else name
    parts = [p for x in {name, template} for p in Path(f"{UNITS}/{x}.d").glob("*.conf")]
    more = [*Path(folder, "conf.d").glob("*.yaml"), *parts]
    return [own, f"{own.removesuffix('.yaml')}.env", f"{UNITS}/{template}", *map(str, more)]


def started(pid: int) -> float:
    """Moment a process began, in seconds since the epoch."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    ticks = int(stat.rpartition(")")[2].split()[19])
    boot = re.search(r"^btime (\d+)", Path("/proc/stat").read_text(encoding="utf-8"), re.M)
    return int(boot[1] if boot else 0) + ticks / 100


def digest(file: str, opsctl: str) -> str:
    """Name the content of a file; of a configuration what it says to serve.

    Comments and what provisioning itself is told are no reason for a restart; files beside it are.
    """
    shown: dict[str, Any] = {}
    if file.endswith(".yaml"):
        argv = [opsctl, "config", "show", "--config", file, "-o", "json"]
        shown = document(argv, timeout=60)[1]
    if "config" in shown:
        meant = {key: value for key, value in shown["config"].items() if key != "provision"}
        return hashlib.sha256(json.dumps(meant, sort_keys=True).encode()).hexdigest()
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def changed_at(files: list[str]) -> float:
    """Moment of the youngest change of files or links."""
    return max((Path(x).lstat().st_mtime for x in files if Path(x).exists()), default=0.0)


class Instances:
    """All instances of the host."""

    def __init__(self, module: AnsibleModule) -> None:
        self.wanted: dict[str, Any] = module.params
        self.check: bool = module.check_mode
        self.file = Path(module.params["known"])
        try:
            self.known: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.known = {}

    def files(self, instance: str) -> list[str]:
        """What an instance reads when it begins."""
        return files_of(instance, self.wanted["config_dir"])

    def content(self, instance: str) -> dict[str, str]:
        """What an instance depends on: files by digest, environments by the folder they are."""
        opsctl = self.wanted["opsctl"]
        found = {
            name: digest(name, opsctl)
            for name in self.files(instance)
            if Path(name).is_file() and Path(name).parent.name != "conf.d"
        }
        for name in self.wanted["environments"]:
            following = Path(f"{name}.next")
            link = following if following.is_symlink() else Path(name)
            found[name] = str(link.resolve())
        return found

    def stale(self, instance: str) -> list[str]:
        """What changed since a running instance began; empty when it runs with what is there.

        A file that was rewritten with what it held, as the repair of a drift does, is no change.
        """
        name, files = unit(instance), self.files(instance)
        pid = int(state(name).get("MainPID") or 0)
        now = self.content(instance)
        then = self.known.get(name)
        if then is None or then["pid"] != pid:
            # Begun by somebody else: it read what was there then, if that is there still.
            begin = started(pid) if pid else time.time()
            then = {"pid": pid, "content": dict(now) if changed_at(files) <= begin else {}}
            for path in self.wanted["environments"]:
                moved = changed_at([path]) > begin
                then["content"][path] = "" if moved else str(Path(path).resolve())
            self.known[name] = then
        known = then["content"]
        return sorted(x for x in {*now, *known} if now.get(x) != known.get(x))

    def keep(self) -> None:
        """Remember with what each instance runs."""
        if not self.check:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write(self.file, json.dumps(self.known, indent=1, sort_keys=True) + "\n")

    def start(self, instance: str) -> None:
        """Start a unit and go on: how long its engine loads is the verifier's matter."""
        name = unit(instance)
        run(["systemctl", "reset-failed", name], timeout=30)
        done = run(["systemctl", "start", "--no-block", name], timeout=60)
        if done.returncode:
            raise HostError(f"{name} cannot be started: {last(done.stderr)}")
        self.begun(instance)

    def begun(self, instance: str) -> None:
        """Write down with what an instance was started, once its process is there."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            pid = int(state(unit(instance)).get("MainPID") or 0)
            if pid:
                now = self.content(instance)
                self.known[unit(instance)] = {"pid": pid, "content": now}
                return
            time.sleep(0.1)

    def stop(self, instance: str) -> None:
        """End a unit: requests in flight finish first, as the unit's own limits say."""
        done = run(["systemctl", "stop", unit(instance)])
        if done.returncode:
            raise HostError(f"{unit(instance)} cannot be stopped: {last(done.stderr)}")

    def serving(self, instance: str) -> bool:
        """Whether an instance has, or is about to have, an engine that a restart would end."""
        code, answer, _ = status(self.wanted["opsctl"], state(unit(instance)))
        if code:
            return True  # it does not say: leave it alone
        return answer.get("state") not in {"backoff", "failed", "stopped"}

    def tell(self, waiting: dict[str, list[str]]) -> None:
        """Leave a note for each instance that waits for a restart, and for no other."""
        for instance in self.wanted["instances"]:
            name = unit(instance)
            why = ", ".join(waiting.get(name, []))
            text = f"{name} still runs with what was there before ({why}): restart it when it suits"
            place = self.wanted["pending"]
            note(f"{place}{name}" if place else None, text if why else "", check=self.check)


def settle(here: Instances) -> dict[str, Any]:
    """Start what is stopped, restart what may be, note what waits."""
    stopped, waiting, restarted = [], {}, []
    for instance in here.wanted["instances"]:
        if state(unit(instance))["ActiveState"] not in RUNNING:
            stopped.append(instance)
            continue
        why = here.stale(instance)
        if why and (here.wanted["restart"] == "if-changed" or not here.serving(instance)):
            restarted.append(instance)
        elif why:
            waiting[unit(instance)] = why
    if not here.check:
        for instance in restarted:
            here.stop(instance)
        for path in here.wanted["environments"]:
            activate(Path(path))
        for instance in [*stopped, *restarted]:
            here.start(instance)
    here.tell(waiting)
    here.keep()
    return {
        "changed": bool(stopped or restarted),
        "started": [unit(x) for x in stopped],
        "restarted": [unit(x) for x in restarted],
        "waiting": waiting,
    }


def remove(here: Instances) -> dict[str, Any]:
    """End the instances, and remove the files of their units and their configurations."""
    names = [unit(x) for x in here.wanted["instances"]]
    known = [name for name in names if properties(name).get("LoadState") == "loaded"]
    files = [x for instance in here.wanted["instances"] for x in here.files(instance)]
    wanted = [TMPFILES, *files]
    ours = [Path(x) for x in dict.fromkeys(wanted) if Path(x).is_file() and managed(Path(x))]
    if not here.check:
        for name in known:
            done = run(["systemctl", "disable", "--now", name])
            if done.returncode:
                raise HostError(f"{name} cannot be stopped: {last(done.stderr)}")
        for file in ours:
            file.unlink()
            with contextlib.suppress(OSError):
                file.parent.rmdir()  # only where nothing of others is left in it
        run(["systemctl", "daemon-reload"], timeout=60)
        here.file.unlink(missing_ok=True)
        here.tell({})
    return {"changed": bool(known or ours)}


def managed(file: Path) -> bool:
    """Whether a file says that it is ours."""
    with file.open(encoding="utf-8", errors="replace") as stream:
        return stream.readline().startswith(MARK)


def main() -> None:
    """Do what the task asks for."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "str", "required": True},
            "config_dir": {"type": "path", "default": "/etc/opsctl"},
            "environments": {"type": "list", "elements": "path", "default": []},
            "opsctl": {"type": "path", "required": True},
            "restart": {
                "type": "str",
                "choices": ["if-stopped", "if-changed"],
                "default": "if-stopped",
            },
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "known": {"type": "path", "default": "/var/lib/opsctl-provision/running.json"},
            "pending": {"type": "path"},
        },
        supports_check_mode=True,
    )
    here = Instances(module)
    try:
        done = remove(here) if module.params["state"] == "absent" else settle(here)
    except HostError as trouble:
        module.fail_json(msg=str(trouble))
    module.exit_json(**done)


if __name__ == "__main__":
    main()
