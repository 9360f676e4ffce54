"""Whatever a profile says, the lint answers and does not fall over."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.config.load import demo
from opsctl.config.schema import LaunchProfile
from opsctl.profiles.catalogue import KNOWN_VERSIONS, shipped
from opsctl.profiles.lint import NOTES, RULES, Host, lint
from opsctl.profiles.lint_subject import ATTENTION_FLAGS

CODES = {rule.code: rule.severity for rule in (*RULES, *NOTES)}
OTHERS = tuple(map(shipped, KNOWN_VERSIONS))
FLAGS = sorted(
    {name for version in OTHERS for name in version.flags if "spec" in name or "graph" in name}
    | {*ATTENTION_FLAGS, "tp-size", "tp", "dp-size", "attn-dp-size", "max-running-requests"}
    | {"page-size", "weight-cache-mode", "quantization", "kv-cache-dtype", "no-such-flag", "nnodes"}
    | {"enable-dp-attention", "attn-cp-size", "context-length", "moe-runner-backend"}
)
VARIABLES = (
    "SGLANG_ENABLE_SPEC_V2",
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    "SGLANG_ENABLE_JIT_DEEPGEMM",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "SGLANG_NO_SUCH",
    "NCCL_GRAPH_FILE",
)
texts = st.text(max_size=20) | st.sampled_from(
    ["EAGLE3", "NEXTN", "NGRAM", "0", "-1", "1", "8", "auto", "trtllm_mla", "fp8_e4m3", "true",
     "expandable_segments:True", "client", "modelopt_fp4", "9" * 40, "1e9", "nan"]
)  # fmt: skip
numbers = (
    st.integers()
    | st.sampled_from([-1, 0, 1, 3, 4, 8, 48])
    | st.floats(allow_nan=False, allow_infinity=False)
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
values = (
    st.none()
    | st.booleans()
    | numbers
    | texts
    | st.lists(texts | st.integers(), max_size=3)
    | st.dictionaries(texts, json_values, max_size=2)
)
profiles = st.builds(
    lambda flags, environment, draft, engine: LaunchProfile(
        model="org/m", draft_model=draft, engine=engine, flags=flags, environment=environment
    ),
    st.dictionaries(st.sampled_from(FLAGS) | texts, values, max_size=10),
    st.dictionaries(st.sampled_from(VARIABLES), st.none() | texts, max_size=4),
    st.none() | st.just("org/d"),
    st.sampled_from(["sglang", "sglang", "sglang", "simulated"]),
)
configs = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "architectures": st.just(["KimiK25ForConditionalGeneration"]) | json_values,
        "text_config": json_values,
        "num_attention_heads": json_values | st.integers(-2, 64),
        "num_key_value_heads": json_values | st.integers(-2, 64),
        "max_position_embeddings": json_values | st.integers(),
        "quantization_config": json_values
        | st.fixed_dictionaries({"quant_method": json_values, "config_groups": json_values}),
        "hidden_size": json_values,
        "kv_lora_rank": json_values,
    },
)
hosts = st.builds(
    Host,
    compute_capability=st.none() | st.sampled_from([(12, 0), (10, 0), (9, 0)]),
    gpu_count=st.none() | st.integers(0, 8),
    checkpoint=configs,
    draft=configs,
    quantization=st.none() | st.dictionaries(st.just("quantization"), json_values),
    missing_shards=st.lists(texts, max_size=5).map(tuple),
    absent=st.frozensets(st.sampled_from(["model", "draft_model", "environment.NCCL_GRAPH_FILE"])),
    adaptive=json_values
    | st.dictionaries(
        st.sampled_from(["1", "8", "x", "²"]),
        st.dictionaries(st.just("candidate_steps"), json_values),
    ),
    adaptive_problem=texts,
    here=st.booleans(),
)


@given(profiles, st.sampled_from(OTHERS), hosts, st.booleans(), st.sampled_from(["eagle3", "p"]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_lint_never_raises_and_says_only_what_is_documented(
    profile: LaunchProfile, catalogue: Any, host: Host, history: bool, name: str
) -> None:
    others = OTHERS if history else ()
    found = lint(name, profile, catalogue, host, config=demo().config, others=others)
    for finding in found:
        assert finding.severity == CODES[finding.code]
        assert finding.profile == name
        assert finding.message and finding.fix and finding.source
        section, _, rest = finding.key.partition(".")
        assert section in {"flags", "environment", "model", "draft_model", "python", "engine",
                           "auto_spec", "serve"}  # fmt: skip
        if section == "flags" and rest:
            assert rest in {written.replace("_", "-") for written in profile.flags}


@given(profiles, st.sampled_from(OTHERS), hosts)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_not_known_of_the_gpu_never_adds_a_rule_of_sm120(
    profile: LaunchProfile, catalogue: Any, host: Host
) -> None:
    from dataclasses import replace

    found = lint("p", profile, catalogue, replace(host, compute_capability=None))
    assert [x for x in found if x.code.startswith(("sm120", "pcie"))] == []


@given(profiles, st.sampled_from(OTHERS))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_flag_that_is_removed_by_null_or_false_has_no_findings(
    profile: LaunchProfile, catalogue: Any
) -> None:
    off = profile.model_copy(update={"flags": dict.fromkeys(profile.flags, False)})
    assert [x for x in lint("p", off, catalogue, Host()) if x.key.startswith("flags.")] == []
