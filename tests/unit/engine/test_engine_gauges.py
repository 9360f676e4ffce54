from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.engine.gauges import generated_tokens
from opsctl.engine.loads import from_metrics

TEXT = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",dp_rank="0"} 1.0
sglang:num_queue_reqs{model_name="m",dp_rank="0"} 0.0
# TYPE sglang:generation_tokens counter
sglang:generation_tokens_total{model_name="m",priority="a b"} 100.0
sglang:generation_tokens_total{model_name="m",priority="2"} 2.5e+02
sglang:generation_tokens_total_other 7.0
"""


def test_it_counts_what_the_full_reading_counts() -> None:
    full = from_metrics(TEXT)
    assert full is not None
    assert generated_tokens(TEXT) == full.generation_tokens_total == 350


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "sglang:generation_tokens_total NaN\n",
        "sglang:generation_tokens_total +Inf\n",
        "sglang:generation_tokens_total x\n",
        "sglang:generation_tokens_total -1\n",
        "# sglang:generation_tokens_total 3\n",
    ],
)
def test_what_is_no_count_is_unknown(text: str | None) -> None:
    assert generated_tokens(text) is None


def test_none_generated_yet_is_zero_and_known() -> None:
    assert generated_tokens("sglang_generation_tokens_total 0.0\n") == 0


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    generated_tokens("sglang:generation_tokens_total " + text)
