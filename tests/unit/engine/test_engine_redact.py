from __future__ import annotations

import pytest

from opsctl.engine.redact import without_secrets


@pytest.mark.parametrize(
    "name",
    [
        "api_key", "admin_api_key", "ssl_keyfile", "ssl_keyfile_password", "ssl_certfile",
        "hf_token", "auth_token", "HF_TOKEN", "hf_hub_key", "client_secret", "watermark_key",
    ],
)  # fmt: skip
def test_secrets_are_removed_at_any_depth(name: str) -> None:
    data = {name: "s3cret", "internal_states": [{name: "s3cret"}, {"deep": {name: ["s3cret"]}}]}
    assert "s3cret" not in repr(without_secrets(data))
    assert without_secrets(data)[name] == "***"


@pytest.mark.parametrize(
    "name",
    [
        "max_total_num_tokens", "speculative_num_draft_tokens", "max_prefill_tokens",
        "tokenizer_path",
        "skip_tokenizer_init", "chunked_prefill_size", "model_path", "max_total_tokens",
        "num_reserved_decode_tokens", "speculative_token_map", "keep_mm_feature_on_device",
    ],
)  # fmt: skip
def test_ordinary_settings_are_kept(name: str) -> None:
    assert without_secrets({name: 7}) == {name: 7}


def test_unset_secrets_show_as_unset() -> None:
    assert without_secrets({"api_key": None, "hf_token": ""}) == {"api_key": None, "hf_token": ""}


def test_dumps_that_may_hold_secrets_are_left_out() -> None:
    data = {"launch_command": "x --api-key s", "env": {"A": "s"}, "version": "0.5.23"}
    assert without_secrets(data) == {"version": "0.5.23"}
