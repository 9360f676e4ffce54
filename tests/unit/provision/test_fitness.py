"""No host is brought up for a profile that is known to break on it."""

from __future__ import annotations

import pytest

from opsctl.config.load import load_text
from opsctl.errors import PreconditionError
from opsctl.provision.fitness import refuse_unfit

FUSED = """
profiles:
  fused:
    model: org/model
    flags: {{tp-size: 8, flashinfer-allreduce-fusion-backend: trtllm}}
    {extra}
serve: {{profile: fused, {serve}}}
provision: {{engine_env: {{sglang: {version}}}}}
"""


def refused(*, version: str = "0.5.23", extra: str = "", serve: str = "") -> None:
    text = FUSED.format(version=version, extra=extra, serve=serve)
    refuse_unfit(load_text(text, name="test", environment={}).config)


def test_a_profile_that_ends_at_start_is_refused_with_the_way_out() -> None:
    with pytest.raises(PreconditionError, match="sm120-fusion-crash") as caught:
        refused()
    assert "opsctl patch apply --only allreduce-fusion" in caught.value.message


def test_a_patch_that_will_be_applied_counts() -> None:
    refused(extra="requires_patches: [allreduce-fusion]")


def test_an_error_can_be_allowed_by_name() -> None:
    refused(serve="allow_findings: [sm120-fusion-crash]")


def test_a_release_that_is_not_known_is_left_to_the_host() -> None:
    refused(version="0.5.99")
