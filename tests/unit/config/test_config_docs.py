"""What the how-to shows can be typed."""

from __future__ import annotations

import re
from pathlib import Path

from opsctl.config.load import load_text

PAGE = Path(__file__).parents[3] / "docs/how-to/write-a-profile.md"


def test_the_profiles_of_the_how_to_make_one_valid_configuration() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    loaded = load_text("".join(blocks), name="how-to", environment={})
    assert loaded.warnings == ()
    assert set(loaded.config.profiles) == {"baseline", "eagle3"}
    assert loaded.config.profiles["eagle3"].environment["NCCL_P2P_LEVEL"] == "SYS"
