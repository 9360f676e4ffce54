"""Which GPUs a launch profile will use, as far as its flags and environment say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opsctl.config.schema import FlagValue, LaunchProfile

PARALLEL = (("tp-size", "tensor-parallel-size", "tp"), ("pp-size", "pipeline-parallel-size", "pp"))


def indices(profile: LaunchProfile, uuids: Sequence[str | None]) -> tuple[int, ...] | None:
    """NVML indices the engine will use, given the UUIDs of the host's GPUs in index order.

    None when it cannot be told, which callers must take for any of them. From
    CUDA_VISIBLE_DEVICES (indices, UUIDs or prefixes of them), `base-gpu-id`, `gpu-id-step` and
    the parallel sizes, as SGLang assigns its ranks.
    """
    flags = {name.replace("_", "-"): value for name, value in profile.flags.items()}
    visible = _visible(profile, uuids)
    count = _count(flags)
    base, step = _number(flags.get("base-gpu-id", 0)), _number(flags.get("gpu-id-step", 1))
    if visible is None or count is None or base is None or step is None:
        return None
    ranks = [base + rank * step for rank in range(count)]
    if not ranks or min(ranks) < 0 or max(ranks) >= len(visible):
        return None
    return tuple(sorted(visible[rank] for rank in ranks))


def _visible(profile: LaunchProfile, uuids: Sequence[str | None]) -> list[int] | None:
    value = profile.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or value == "":
        return list(range(len(uuids)))
    if not isinstance(value, str):
        return None
    found = [_device(word.strip(), uuids) for word in value.split(",")]
    known = [index for index in found if index is not None]
    return known if len(known) == len(found) else None


def _device(word: str, uuids: Sequence[str | None]) -> int | None:
    if word.isdecimal():
        return int(word) if int(word) < len(uuids) else None
    matches = [i for i, uuid in enumerate(uuids) if uuid and word and uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None


def _count(flags: Mapping[str, FlagValue]) -> int | None:
    total = 1
    for names in PARALLEL:
        sizes = [_number(flags[name]) for name in names if flags.get(name) is not None]
        if None in sizes or len(sizes) > 1:
            return None
        total *= sizes[0] or 1 if sizes else 1
    replicas = _number(next((flags[n] for n in ("dp-size", "dp") if flags.get(n)), 1))
    if replicas is None:
        return None
    attention = flags.get("enable-dp-attention") or flags.get("attn-dp-size")
    return total if attention else total * replicas


def _number(value: FlagValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
