"""Reading request bodies: hostile until parsed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opsctl.engine.simulated import words
from opsctl.engine.simulated.core import Job
from opsctl.engine.simulated.flags import Options
from opsctl.engine.simulated.surface import surfaces

_numbers = itertools.count(1)


class BadRequestError(Exception):
    """The request cannot be served as it is; answered with 400 and SGLang's error object."""


@dataclass(frozen=True)
class Wanted:
    """A completion request, understood."""

    job: Job
    stream: bool
    include_usage: bool
    model: str


def completion(body: object, options: Options) -> Wanted:
    """Read a /v1/completions body; absent `max_tokens` means 16, as the OpenAI API has it."""
    fields = _mapping(body)
    return _wanted(
        fields, _prompt(fields.get("prompt")), _limit(fields, ("max_tokens",), 16), options
    )


def chat(body: object, options: Options) -> Wanted:
    """Read a /v1/chat/completions body; without a limit the answer has its natural length."""
    fields = _mapping(body)
    limit = _limit(fields, ("max_completion_tokens", "max_tokens"), None)
    return _wanted(fields, _conversation(fields.get("messages")), limit, options)


def generate(body: object, options: Options) -> Wanted:
    """Read a /generate body (SGLang's own API); absent `max_new_tokens` means 128."""
    fields = _mapping(body)
    sampling = fields.get("sampling_params") or {}
    if not isinstance(sampling, Mapping):
        raise BadRequestError("sampling_params must be an object")
    limit = _limit(sampling, ("max_new_tokens",), 128)
    prompt = fields["input_ids"] if "input_ids" in fields else fields.get("text")
    return _wanted(fields, _prompt(prompt), limit, options)


def new_id() -> str:
    """Return a request id that no other engine uses either."""
    return f"{os.getpid():x}-{next(_numbers):08x}"


def _mapping(body: object) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise BadRequestError("the body must be a JSON object")
    return body


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if value is not None and not isinstance(value, bool):
        raise BadRequestError(f"{name}: Input should be a valid boolean")
    return bool(value)


def _limit(fields: Mapping[str, Any], names: tuple[str, ...], default: int | None) -> int | None:
    for name in names:
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequestError(f"{name}: Input should be a valid integer")
        if value < 1:
            raise BadRequestError(f"{name}: must be at least 1, got {value}")
        return value
    return default


def _wanted(
    fields: Mapping[str, Any], prompt: tuple[str, int], limit: int | None, options: Options
) -> Wanted:
    if fields.get("n") not in (None, 1):
        raise BadRequestError("n: the simulated engine gives one answer a request")
    text, count = prompt
    known = surfaces()
    reading = words.read(text, known.accept_lengths, known.unlabelled, options.seed)
    natural = limit is None
    wanted = reading.natural_length if limit is None else limit
    if natural:
        wanted = min(wanted, max(1, options.usable_context - count))
    if count + wanted > options.usable_context:
        raise BadRequestError(
            f"Requested token count exceeds the model's maximum context length of "
            f"{options.usable_context} tokens. You requested a total of {count + wanted} tokens: "
            f"{count} tokens from the input messages and {wanted} tokens for the completion."
        )
    return Wanted(
        job=Job(
            rid=_rid(fields),
            prompt_tokens=count,
            max_new_tokens=wanted,
            accept_length=reading.accept_length,
            finish="stop" if natural else "length",
            seed=reading.seed,
        ),
        stream=_flag(fields, "stream"),
        include_usage=_include_usage(fields.get("stream_options")),
        model=str(fields.get("model") or options.served_model_name),
    )


def _rid(fields: Mapping[str, Any]) -> str:
    rid = fields.get("rid")
    if rid is None:
        return new_id()
    if not isinstance(rid, str) or not 0 < len(rid) <= 200:
        raise BadRequestError("rid must be a string of 1 to 200 characters")
    return rid


def _include_usage(stream_options: object) -> bool:
    if stream_options is None:
        return False
    if not isinstance(stream_options, Mapping):
        raise BadRequestError("stream_options must be an object")
    return _flag(stream_options, "include_usage")


def _prompt(prompt: object) -> tuple[str, int]:
    """Return a prompt as text and its token count; a list of token ids counts itself."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, words.prompt_tokens(prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return " ".join(map(str, prompt)), len(prompt)
    raise BadRequestError("prompt: expected one string or one list of token ids")


def _conversation(messages: object) -> tuple[str, int]:
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages: expected a list with at least one message")
    texts = [_content(message) for message in messages]
    # Four tokens a message stand for what a chat template adds.
    return "\n".join(texts), sum(words.prompt_tokens(text) + 4 for text in texts)


def _content(message: object) -> str:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadRequestError("messages: every message needs a role")
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(part for part in parts if isinstance(part, str))
    raise BadRequestError("messages: content must be a string or a list of parts")
