"""Hosts for the doctor's tests: facts, file trees, and a fake driver library."""
