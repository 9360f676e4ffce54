from __future__ import annotations

from typing import Any

import pytest

from opsctl.config.schema import LaunchProfile
from opsctl.profiles.gpus import indices

UUIDS = [f"GPU-{n}aaaaaaa-0000" for n in range(8)]


def used(flags: dict[str, Any], visible: str | None = None) -> tuple[int, ...] | None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    profile = LaunchProfile(model="/m", flags=flags, environment=environment)
    return indices(profile, UUIDS)


@pytest.mark.parametrize(
    ("flags", "visible", "expected"),
    [
        ({}, None, (0,)),
        ({"tp-size": 8}, None, tuple(range(8))),
        ({"tensor_parallel_size": 4}, "4,5,6,7", (4, 5, 6, 7)),
        ({"tp": 2, "base-gpu-id": 1}, "2,3,6", (3, 6)),
        ({"tp-size": 2, "gpu-id-step": 3}, None, (0, 3)),
        ({"tp-size": 2, "pp-size": 2}, None, (0, 1, 2, 3)),
        ({"tp-size": 2, "dp-size": 3}, None, tuple(range(6))),
        ({"tp-size": 4, "dp-size": 4, "enable-dp-attention": True}, None, (0, 1, 2, 3)),
        ({"tp-size": 2}, "GPU-7aaaaaaa, GPU-0", (0, 7)),
    ],
)
def test_ranks_go_to_gpus_as_sglang_assigns_them(
    flags: dict[str, Any], visible: str | None, expected: tuple[int, ...]
) -> None:
    assert used(flags, visible) == expected


@pytest.mark.parametrize(
    ("flags", "visible"),
    [
        ({"tp-size": 9}, None),
        ({"tp-size": 2}, "0"),
        ({}, "0,nonsense"),
        ({}, "GPU-"),
        ({}, "9"),
        ({"tp-size": "eight"}, None),
        ({"tp-size": 2, "tp": 4}, None),
        ({"tp-size": 0.5}, None),
        ({"base-gpu-id": -1}, None),
    ],
)
def test_what_cannot_be_told_is_unknown(flags: dict[str, Any], visible: str | None) -> None:
    assert used(flags, visible) is None
