"""Rules for workstation Blackwell (SM120): PCIe, no NVLink, no multicast, no TMEM. Pure.

Nothing here fires when the compute capability is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.profiles.lint_model import Complaint, Rule
from opsctl.profiles.lint_quantization import Quantization, quantization
from opsctl.profiles.lint_subject import Setting, Subject

FUSION = ("flashinfer-allreduce-fusion-backend", "enable-flashinfer-allreduce-fusion")
PCIE_IPC = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
PCIE_IPC_WORLDS = (2, 4, 8)
NO_KERNELS = ("fa3", "flashmla")
SM100_ATTENTION = ("cutedsl_mla", "tokenspeed_mla", "cutlass_mla")
SM100_RUNNERS = ("flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutedsl")
_DEEPGEMM = "SGLANG_ENABLE_JIT_DEEPGEMM"


def _fusion(s: Subject) -> Setting | None:
    """The flag that turns FlashInfer's all-reduce fusion on, unless another one keeps it off."""
    if not s.sm120 or s.has("enforce-disable-flashinfer-allreduce-fusion"):
        return None
    return s.setting(*FUSION)


def _quantization(s: Subject) -> Quantization | None:
    flag = s.text("quantization")
    found = quantization(s.host.checkpoint, s.host.quantization)
    if found is None and flag is not None:
        return Quantization(flag, "fp4" if "fp4" in flag else "")
    return found


def _nvfp4(s: Subject) -> bool:
    found = _quantization(s)
    return s.sm120 and found is not None and found.weights == "fp4"


def _fusion_crash(s: Subject) -> Iterator[Complaint]:
    setting = _fusion(s)
    if setting is not None and s.since(14) and not s.patched("allreduce-fusion"):
        yield Complaint(
            setting.key,
            f"SGLang {s.catalogue.version} ends at start with FlashInfer's all-reduce fusion on "
            "SM120, unless it is patched",
        )


def _fusion_ignored(s: Subject) -> Iterator[Complaint]:
    setting = _fusion(s)
    if setting is not None and s.before(14) and not s.patched("allreduce-fusion"):
        yield Complaint(
            setting.key,
            f"SGLang {s.catalogue.version} ignores `--{setting.written}` on SM120, unless it is "
            "patched",
        )


def _multicast(s: Subject) -> Iterator[Complaint]:
    backend = s.text(FUSION[0])
    if s.sm120 and backend in ("mnnvl", "cutedsl"):
        yield Complaint(
            s.key(FUSION[0]),
            f"{backend} needs multicast over NVLink, which a PCIe board has not; no patch helps",
        )


def _symm_mem_unpatched(s: Subject) -> bool:
    return s.has("enable-torch-symm-mem") and not s.patched("torch-symm-mem")


def _symm_mem_crash(s: Subject) -> Iterator[Complaint]:
    if s.sm120 and s.before(14) and _symm_mem_unpatched(s):
        what = f"SGLang {s.catalogue.version} ends at start with `KeyError: 12` on SM120"
        yield Complaint(s.key("enable-torch-symm-mem"), what)


def _symm_mem_off(s: Subject) -> Iterator[Complaint]:
    if s.sm120 and s.since(14) and _symm_mem_unpatched(s):
        what = "SGLang warns and leaves Torch symmetric memory off on SM120"
        yield Complaint(s.key("enable-torch-symm-mem"), what)


def _nvlink_only(s: Subject) -> Iterator[Complaint]:
    for name in ("enable-nccl-nvls", "enable-symm-mem"):
        if s.sm120 and s.has(name):
            yield Complaint(s.key(name), f"`--{name}` has no effect between PCIe GPUs")


def _trtllm_mla(s: Subject) -> Iterator[Complaint]:
    for setting, backend in s.attention_backends():
        if s.sm120 and backend == "trtllm_mla":
            what = "trtllm_mla passes SGLang's checks on SM120 and fails in its kernels"
            yield Complaint(setting.key, what)


def _no_kernels(s: Subject) -> Iterator[Complaint]:
    for setting, backend in s.attention_backends():
        if s.sm120 and backend in NO_KERNELS:
            yield Complaint(setting.key, f"{backend} has no kernels for SM120")


def _fa4(s: Subject) -> Iterator[Complaint]:
    for setting, backend in s.attention_backends():
        if s.sm120 and backend == "fa4":
            yield Complaint(setting.key, "fa4 was seen to refuse a paged KV cache on SM120")


def _sm100_attention(s: Subject) -> Iterator[Complaint]:
    for setting, backend in s.attention_backends():
        if s.sm120 and backend in SM100_ATTENTION:
            yield Complaint(setting.key, f"{backend} is for SM100")


def _trtllm_mha(s: Subject) -> Iterator[Complaint]:
    decode = s.text("decode-attention-backend") or s.text("attention-backend")
    prefill = s.text("prefill-attention-backend") or s.text("attention-backend")
    if s.sm120 and prefill == "trtllm_mha":
        key = s.key("prefill-attention-backend", "attention-backend")
        yield Complaint(key, "trtllm_mha cannot prefill on SM120")
    elif s.sm120 and decode == "trtllm_mha" and s.before(10):
        key = s.key("decode-attention-backend", "attention-backend")
        yield Complaint(key, f"SGLang {s.catalogue.version} has no trtllm_mha for SM120")


def _sm100_runner(s: Subject) -> Iterator[Complaint]:
    for name in ("moe-runner-backend", "fp4-gemm-backend", "speculative-moe-runner-backend"):
        if s.sm120 and s.text(name) in SM100_RUNNERS:
            yield Complaint(s.key(name), f"{s.text(name)} has kernels for SM100 only")


def _deepgemm(s: Subject) -> Iterator[Complaint]:
    off = s.enabled(_DEEPGEMM) is False or s.patched("deepgemm-scales")
    if _nvfp4(s) and s.before(13) and not off:
        key = f"environment.{_DEEPGEMM}" if _DEEPGEMM in s.variables else "environment"
        what = (
            f"SGLang {s.catalogue.version} uses DeepGEMM with SM100's scale format on SM120: "
            "an NVFP4 checkpoint gives NaN where DeepGEMM is installed"
        )
        yield Complaint(key, what)


def _implicit_runner(s: Subject) -> Iterator[Complaint]:
    runner = s.text("moe-runner-backend")
    if not _nvfp4(s) or runner not in (None, "auto") or not _experts(s):
        return
    if s.before(13):
        what = f"SGLang {s.catalogue.version} may choose an SM100 runner for NVFP4 experts"
    else:
        what = "the runner of the NVFP4 experts is left to SGLang; a later release may choose anew"
    yield Complaint(s.key("moe-runner-backend"), what)


def _experts(s: Subject) -> bool:
    names = ("n_routed_experts", "num_experts", "num_local_experts", "moe_intermediate_size")
    return not s.target or any(s.target.get(name) for name in names)


def _implicit_fp4(s: Subject) -> Iterator[Complaint]:
    if _nvfp4(s) and s.before(13) and s.text("fp4-gemm-backend") in (None, "auto"):
        what = "the FP4 GEMM is left to SGLang, whose CUTLASS kernel has a race on SM120"
        yield Complaint(s.key("fp4-gemm-backend"), what)


def _hidden_fp8_kv(s: Subject) -> Iterator[Complaint]:
    found = _quantization(s)
    dtype = s.text("kv-cache-dtype")
    if s.sm120 and found is not None and found.fp8_kv and dtype in (None, "auto"):
        what = "the checkpoint asks for an FP8 KV cache and `kv-cache-dtype` auto follows it"
        yield Complaint(s.key("kv-cache-dtype"), what)


def _fp8_kv_int4(s: Subject) -> Iterator[Complaint]:
    found = _quantization(s)
    dtype = s.text("kv-cache-dtype") or ""
    if s.sm120 and found is not None and found.weights == "int4" and dtype.startswith("fp8"):
        what = "an FP8 KV cache with native INT4 weights was seen to decode at 16 tok/s on SM120"
        yield Complaint(s.key("kv-cache-dtype"), what)


def _implicit_attention(s: Subject) -> Iterator[Complaint]:
    if s.sm120 and not s.has("attention-backend") and s.target.get("kv_lora_rank"):
        what = "MLA runs with triton on SM120 unless told otherwise"
        yield Complaint(s.key("decode-attention-backend"), what)


def _pcie_ipc_unused(s: Subject) -> Iterator[Complaint]:
    fits = s.size("tp-size") in PCIE_IPC_WORLDS and not s.has("enable-deterministic-inference")
    if s.sm120 and s.since(22) and fits and PCIE_IPC not in s.variables:
        yield Complaint("environment", f"{PCIE_IPC} is not used")


def _pcie_ipc(s: Subject) -> bool:
    return bool(s.sm120 and s.enabled(PCIE_IPC))


def _pcie_ipc_fusion(s: Subject) -> Iterator[Complaint]:
    setting = _fusion(s)
    if _pcie_ipc(s) and setting is not None:
        what = f"`--{setting.written}` takes most reductions away from {PCIE_IPC}"
        yield Complaint(f"environment.{PCIE_IPC}", what)


def _pcie_ipc_inert(s: Subject) -> Iterator[Complaint]:
    if not _pcie_ipc(s) or s.before(21):
        return
    key, size = f"environment.{PCIE_IPC}", s.size("tp-size")
    if s.before(22):
        yield Complaint(key, f"the FlashInfer that SGLang {s.catalogue.version} pins lacks it")
    elif size not in PCIE_IPC_WORLDS:
        yield Complaint(key, f"it works for 2, 4 or 8 ranks, not for `tp-size` {size}")
    elif s.has("enable-deterministic-inference"):
        yield Complaint(key, "deterministic inference turns it off")


RULES = (
    Rule(
        "sm120-fusion-crash",
        "error",
        "FlashInfer's all-reduce fusion is for SM90 and SM100: a ValueError ends the start after "
        "the weights are loaded. Upstream closed its own attempt for SM12x, as it was slower on "
        "PCIe.",
        "Remove the flag; 0.5.22 and later have SGLANG_ENABLE_PCIE_IPC_ALLREDUCE for PCIe. To "
        "measure it: `opsctl patch apply --only allreduce-fusion`.",
        "0.5.14-0.5.23 `layers/flashinfer_comm_fusion.py:_resolve_backend`; sglang#15650, #32330",
        _fusion_crash,
    ),
    Rule(
        "sm120-fusion-ignored",
        "warning",
        "Up to 0.5.13 the flag passes and is never applied.",
        "Remove the flag. To measure it: `opsctl patch apply --only allreduce-fusion`.",
        "0.5.9 `layers/communicator.py:apply_flashinfer_allreduce_fusion`",
        _fusion_ignored,
    ),
    Rule(
        "sm120-multicast",
        "error",
        "MNNVL and CuTe DSL fusion are built for multicast and SM100.",
        "Remove the flag.",
        "`layers/flashinfer_comm_fusion.py`; vllm#34891",
        _multicast,
    ),
    Rule(
        "sm120-symm-mem-crash",
        "error",
        "The size table has no entry for compute capability 12.",
        "Remove the flag. To measure it: `opsctl patch apply --only torch-symm-mem`.",
        "0.5.9-0.5.13 `distributed/device_communicators/torch_symm_mem.py`",
        _symm_mem_crash,
    ),
    Rule(
        "sm120-symm-mem-off",
        "warning",
        "The flag does nothing here: no size for SM120, and no multicast over PCIe.",
        "Remove the flag. To measure it: `opsctl patch apply --only torch-symm-mem`.",
        "0.5.14-0.5.23 `distributed/device_communicators/torch_symm_mem.py`; sglang#30364",
        _symm_mem_off,
    ),
    Rule(
        "sm120-nvlink-only",
        "info",
        "NCCL's symmetric memory and NVLS need NVLink.",
        "Remove the flag.",
        "nccl#2275",
        _nvlink_only,
    ),
    Rule(
        "sm120-trtllm-mla",
        "error",
        "SGLang counts SM120 as Blackwell; the decode kernel takes one query token and FP8 only, "
        'which breaks the verification of drafts, and prefill ends with "Unsupported '
        'architecture".',
        "Use triton, or flashinfer (0.5.22 and later have its kernels for SM120's shared memory).",
        "0.5.9 `srt/server_args.py:1878`, 0.5.23 `arg_groups/overrides.py:1204`",
        _trtllm_mla,
    ),
    Rule(
        "sm120-no-kernels",
        "error",
        "sglang-kernel's FlashAttention-3 and FlashMLA are compiled for SM80 to SM103.",
        "Use triton or flashinfer.",
        "sglang-kernel 0.4.10 `flash_ops`, `flashmla_ops`",
        _no_kernels,
    ),
    Rule(
        "sm120-fa4",
        "warning",
        "One report: `AssertionError: Paged KV not supported on SM 12.0`.",
        "Use triton or flashinfer.",
        "a public tuning log for RTX PRO 6000, 2026",
        _fa4,
    ),
    Rule(
        "sm120-sm100-attention",
        "error",
        "The backend needs SM100; SGLang ends at start or fails in its kernels.",
        "Use triton or flashinfer.",
        "0.5.23 `arg_groups/overrides.py:_cutedsl_prefill_backend_fill`",
        _sm100_attention,
    ),
    Rule(
        "sm120-trtllm-mha",
        "error",
        "SGLang ends at start: prefill needs SM100; decode has SM120 since 0.5.10.",
        "Use flashinfer or triton.",
        "0.5.9 `srt/server_args.py:1900`, 0.5.11 `srt/server_args.py:2629`",
        _trtllm_mha,
    ),
    Rule(
        "sm120-sm100-runner",
        "error",
        "trtllm-gen and CuTe DSL kernels exist for SM100 only.",
        "Use flashinfer_cutlass or triton.",
        "0.5.23 `arg_groups/overrides.py:1514`; sglang#39807",
        _sm100_runner,
    ),
    Rule(
        "sm120-deepgemm",
        "error",
        "Up to 0.5.12 SM120 counts as a Blackwell with UE8M0 scales; results are NaN.",
        'Set SGLANG_ENABLE_JIT_DEEPGEMM to "0", or `opsctl patch apply --only deepgemm-scales`.',
        "0.5.9-0.5.12 `layers/deep_gemm_wrapper/configurer.py`; sglang#19948",
        _deepgemm,
    ),
    Rule(
        "sm120-implicit-runner",
        "warning",
        "A backend that is left on auto has picked an SM100 kernel on SM120 more than once.",
        "Set `moe-runner-backend: flashinfer_cutlass` (or triton).",
        "0.5.9 `srt/server_args.py:1618`; 0.5.13 sets flashinfer_cutlass itself; sglang#39807",
        _implicit_runner,
    ),
    Rule(
        "sm120-implicit-fp4-gemm",
        "warning",
        "Up to 0.5.12 auto may end at a CUTLASS kernel with a race.",
        "Set `fp4-gemm-backend: flashinfer_cudnn`.",
        "flashinfer#2708",
        _implicit_fp4,
    ),
    Rule(
        "hidden-fp8-kv",
        "warning",
        "The KV cache becomes FP8 although no flag says so, which changes answers and backends.",
        "Set `kv-cache-dtype`: bf16, or fp8_e4m3 if that is meant.",
        "sglang#39807; config.json and hf_quant_config.json of the checkpoint",
        _hidden_fp8_kv,
    ),
    Rule(
        "sm120-fp8-kv-int4",
        "warning",
        "One report, of 0.5.9's time: 16 tok/s against about 90 with a bf16 cache.",
        "Set `kv-cache-dtype: bf16`, and measure before changing it.",
        "rtx6kpro wiki, March 2026",
        _fp8_kv_int4,
    ),
    Rule(
        "sm120-implicit-attention",
        "info",
        "The default for MLA on SM120 is triton; flashinfer has fitting kernels in late releases.",
        "Set `attention-backend: triton` (or flashinfer), so that an upgrade changes nothing "
        "unseen.",
        "0.5.9-0.5.23 `attention-backend` defaults",
        _implicit_attention,
    ),
    Rule(
        "pcie-ipc-unused",
        "info",
        "SGLang has an all-reduce for PCIe boards without NVLink, off by default. Reported on 8 "
        "GPUs: 21.1 to 13.6 ms per token. It needs direct P2P, and spins without a time-out.",
        "Try SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 and measure; keep `watchdog-timeout` low.",
        "0.5.22 `distributed/device_communicators/pcie_ipc_ar.py`; sglang#34528",
        _pcie_ipc_unused,
    ),
    Rule(
        "pcie-ipc-with-fusion",
        "warning",
        "Fused sites bypass it.",
        "Use one of the two.",
        "0.5.23 `distributed/parallel_state.py:_resolve_outplace_all_reduce_method`",
        _pcie_ipc_fusion,
    ),
    Rule(
        "pcie-ipc-inert",
        "warning",
        "The variable is set and nothing comes of it; reductions stay on NCCL.",
        "Remove it, or meet its conditions.",
        "0.5.21-0.5.23 `distributed/device_communicators/pcie_ipc_ar.py`",
        _pcie_ipc_inert,
    ),
)
