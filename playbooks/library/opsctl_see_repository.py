#!/usr/bin/python3
"""Ansible module: what apt knows of a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.opsctl_system import Host, Seen, answer

DOCUMENTATION = r"""
module: opsctl_see_repository
short_description: What apt knows of a repository
description: Changes nothing.
options:
  state: {type: str, choices: [present, absent], default: present}
  pending: {type: path, required: true, description: Folder of notes.}
  url: {type: str, required: true}
  source: {type: path, required: true, description: Our own source file.}
  digest: {type: str, required: true, description: Of key and source as they should be.}
"""
OPTIONS = {
    "url": {"type": "str", "required": True},
    "source": {"type": "path", "required": True},
    "digest": {"type": "str", "required": True},
}
READ = "/var/lib/opsctl-provision/nvidia_repo.read"


def see(host: Host, wanted: dict[str, Any]) -> Seen:
    """Find files that name the repository too, and its lists; `read` says these are trusted."""
    lists = _lists(host, wanted["url"])
    return Seen(
        {
            "others": _others(host, wanted["url"], wanted["source"]),
            "lists": lists,
            "read": bool(lists) and host.read(READ) == wanted["digest"],
        }
    )


def _others(host: Host, url: str, ours: str) -> list[str]:
    folder = host.path("/etc/apt/sources.list.d")
    files = [*folder.glob("*.list"), *folder.glob("*.sources")]
    names = ["/etc/apt/sources.list", *sorted(f"/etc/apt/sources.list.d/{f.name}" for f in files)]
    return [name for name in names if name != ours and _names(host.read(name), url)]


def _names(text: str, url: str) -> bool:
    """Whether an enabled stanza or line of a sources file names a repository."""
    for stanza in text.split("\n\n"):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        if any(line.replace(" ", "").lower() == "enabled:no" for line in lines):
            continue
        if any(word.rstrip("/") == url.rstrip("/") for line in lines for word in line.split()):
            return True
    return False


def _lists(host: Host, url: str) -> list[str]:
    """Files that apt keeps of a repository: its index and, beside it, the signed release file."""
    ran = host.run("apt-get", "indextargets", "--format", "$(REPO_URI) $(FILENAME)")
    rows = (line.split(" ", 1) for line in ran.out.splitlines() if " " in line)
    stems = {file.split("_Packages")[0] for address, file in rows if _plain(address) == _plain(url)}
    kinds = ("_Packages*", "_InRelease", "_Release", "_Release.gpg")
    lists = host.path("/var/lib/apt/lists")
    found = (
        file for stem in stems for kind in kinds for file in lists.glob(Path(stem).name + kind)
    )
    return sorted(f"/var/lib/apt/lists/{file.name}" for file in found)


def _plain(url: str) -> str:
    """An address without what apt leaves out or adds: `file:///a` is `file:/a/` to it."""
    return url.rstrip("/").replace("file:///", "file:/")


if __name__ == "__main__":
    answer("nvidia_repo", OPTIONS, see)
