"""The simulated engine: a program of its own that behaves like an SGLang server tree.

Run it with `python -m opsctl.engine.simulated`. It starts real processes, listens on a real port,
streams real bytes and dies from real signals; only the model and the GPU are missing. It is for
demos, tests and policy work, and says so in `/server_info`, `/metrics`, `/v1/models` and its
first log line. docs/reference/simulated-engine.md lists what it does and does not imitate.
"""

from __future__ import annotations

NAME = "opsctl-simulated"
IMITATES = "0.5.23"
