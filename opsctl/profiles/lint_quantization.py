"""How a checkpoint is quantized, read from its config.json and hf_quant_config.json. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_GROUPS = 64


@dataclass(frozen=True)
class Quantization:
    """What the checkpoint says of itself."""

    method: str
    """quant_method of SGLang: `compressed-tensors`, `modelopt`, `fp8` ...; empty: none."""
    weights: str
    """`int4`, `fp4`, `fp8`, `int8`, or empty where it does not say."""
    fp8_kv: bool = False
    """It asks for an FP8 KV cache, which `kv-cache-dtype: auto` follows."""
    block_fp8: bool = False


NONE = Quantization("", "")


def quantization(
    config: Mapping[str, Any] | None, extra: Mapping[str, Any] | None = None
) -> Quantization | None:
    """None when no config.json was read; `NONE` for a checkpoint that is not quantized."""
    if config is None:
        return None
    section = _section(config)
    modelopt = _mapping((extra or {}).get("quantization"))
    if not section and not modelopt:
        return NONE
    method = _text(section.get("quant_method")) or ("modelopt" if modelopt else "")
    algorithm = (
        _text(modelopt.get("quant_algo"))
        or _text(section.get("quant_algo"))
        or _text(_mapping(section.get("quantization")).get("quant_algo"))
    )
    return Quantization(
        method,
        _weights(method, algorithm, section),
        _fp8_kv(section, modelopt),
        method == "fp8" and bool(section.get("weight_block_size")),
    )


def _section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quantization, of the whole or of its language part (Kimi K2.5 has it there)."""
    for holder in (config, *(_mapping(config.get(n)) for n in ("text_config", "llm_config"))):
        for name in ("quantization_config", "compression_config"):
            found = _mapping(holder.get(name))
            if found:
                return found
    return {}


def _weights(method: str, algorithm: str, section: Mapping[str, Any]) -> str:
    if "fp4" in algorithm or "fp4" in method:
        return "fp4"
    if "fp8" in algorithm or method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    for scheme in _schemes(section):
        bits, kind = scheme.get("num_bits"), _text(scheme.get("type"))
        if bits == 4:
            return "fp4" if kind == "float" else "int4"
        if bits == 8:
            return "fp8" if kind == "float" else "int8"
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin"):
        return "int8" if section.get("bits") == 8 else "int4"
    return ""


def _schemes(section: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    groups = list(_mapping(section.get("config_groups")).values())[:_MAX_GROUPS]
    for group in groups:
        weights = _mapping(_mapping(group).get("weights"))
        if weights:
            yield weights


def _fp8_kv(section: Mapping[str, Any], modelopt: Mapping[str, Any]) -> bool:
    named = (
        section.get("kv_cache_quant_algo"),
        _mapping(section.get("quantization")).get("kv_cache_quant_algo"),
        modelopt.get("kv_cache_quant_algo"),
    )
    if any("fp8" in _text(value) for value in named):
        return True
    scheme = _mapping(section.get("kv_cache_scheme"))
    return scheme.get("num_bits") == 8 and _text(scheme.get("type")) == "float"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value.lower() if isinstance(value, str) else ""
