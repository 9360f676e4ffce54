"""What a provisioning left to a person is read from the host it was left on."""

from __future__ import annotations

from pathlib import Path

from opsctl.provision.places import pending


def test_each_note_is_a_line_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b-bios").write_text("BIOS: Above 4G\n")
    (tmp_path / "a-reboot").write_text("reboot: nouveau is loaded\n")
    (tmp_path / "c-empty").write_text("\n")
    assert pending(tmp_path) == ("reboot: nouveau is loaded", "BIOS: Above 4G")


def test_a_host_that_was_never_provisioned_has_none(tmp_path: Path) -> None:
    assert pending(tmp_path / "none") == ()


def test_what_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert pending(tmp_path) == ()
