"""Turns a bare host into a serving host: inventory, Ansible run, report, systemd unit."""
