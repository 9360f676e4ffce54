"""Response bodies of the three generating endpoints, in SGLang's shapes."""

from __future__ import annotations

import time
from typing import Any, Protocol

from opsctl.engine.simulated.manager import Piece, Request
from opsctl.engine.simulated.prompts import Wanted


def usage(request: Request) -> dict[str, Any]:
    """Return the usage object: what was counted on the way out."""
    return {
        "prompt_tokens": request.job.prompt_tokens,
        "total_tokens": request.job.prompt_tokens + request.tokens,
        "completion_tokens": request.tokens,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def error(message: str, code: int = 400) -> dict[str, Any]:
    """Return SGLang's error object."""
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(code, "InternalServerError")
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


class Shape(Protocol):
    """How one endpoint words its answers."""

    def opening(self) -> dict[str, Any] | None:
        """The event before the first token, if there is one."""

    def event(self, piece: Piece) -> dict[str, Any]:
        """The event of some tokens."""

    def whole(self, text: str, last: Piece) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    def closing(self) -> dict[str, Any] | None:
        """The event after the last token, if there is one."""


class OpenAI:
    """What chat and text completions share."""

    kind = ""
    chunk = ""

    def __init__(self, wanted: Wanted, request: Request) -> None:
        self._wanted = wanted
        self._request = request
        self._created = int(time.time())

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._request.job.rid,
            "object": kind,
            "created": self._created,
            "model": self._wanted.model,
            "choices": choices,
        }

    def closing(self) -> dict[str, Any] | None:
        """The usage event, when asked for."""
        if not self._wanted.include_usage:
            return None
        return {**self._body(self.chunk, []), "usage": usage(self._request)}

    def _choice(self, finish: str | None, **content: Any) -> dict[str, Any]:
        return {
            "index": 0, **content, "logprobs": None, "finish_reason": finish, "matched_stop": None,
        }  # fmt: skip


class Chat(OpenAI):
    """/v1/chat/completions."""

    kind = "chat.completion"
    chunk = "chat.completion.chunk"

    def opening(self) -> dict[str, Any] | None:
        """The event that carries only the role."""
        delta = {"role": "assistant", "content": ""}
        return self._body(self.chunk, [self._choice(None, delta=delta)])

    def event(self, piece: Piece) -> dict[str, Any]:
        """One delta."""
        delta = {"content": piece.text} if piece.text else {}
        return self._body(self.chunk, [self._choice(piece.finish, delta=delta)])

    def whole(self, text: str, last: Piece) -> dict[str, Any]:
        """One message."""
        message = {"role": "assistant", "content": text, "tool_calls": None}
        body = self._body(self.kind, [self._choice(last.finish, message=message)])
        return {**body, "usage": usage(self._request)}


class Text(OpenAI):
    """/v1/completions."""

    kind = "text_completion"
    chunk = "text_completion"

    def opening(self) -> dict[str, Any] | None:
        """Nothing."""
        return None

    def event(self, piece: Piece) -> dict[str, Any]:
        """One piece of text."""
        return self._body(self.chunk, [self._choice(piece.finish, text=piece.text)])

    def whole(self, text: str, last: Piece) -> dict[str, Any]:
        """All of the text."""
        body = self._body(self.kind, [self._choice(last.finish, text=text)])
        return {**body, "usage": usage(self._request)}


class Native:
    """/generate: the text so far in every event, and meta_info."""

    def __init__(self, request: Request, draft_tokens: int) -> None:
        self._request = request
        self._drafts = draft_tokens - 1
        self._text: list[str] = []

    def opening(self) -> dict[str, Any] | None:
        """Nothing."""
        return None

    def closing(self) -> dict[str, Any] | None:
        """Nothing."""
        return None

    def event(self, piece: Piece) -> dict[str, Any]:
        """The text so far."""
        self._text.append(piece.text)
        return self.whole("".join(self._text), piece)

    def whole(self, text: str, last: Piece) -> dict[str, Any]:
        """The text and its meta_info."""
        return {"text": text, "output_ids": [], "meta_info": self._meta(last)}

    def _meta(self, piece: Piece) -> dict[str, Any]:
        request = self._request
        finish: dict[str, Any] | None = {"type": piece.finish} if piece.finish else None
        if finish and piece.finish == "length":
            finish["length"] = request.job.max_new_tokens
        if finish and piece.finish == "abort":
            finish["message"] = "Aborted"
        meta: dict[str, Any] = {
            "id": request.job.rid,
            "finish_reason": finish,
            "prompt_tokens": request.job.prompt_tokens,
            "completion_tokens": request.tokens,
            "cached_tokens": 0,
            "e2e_latency": time.monotonic() - request.began,
        }
        if self._drafts > 0 and piece.steps:
            # The first token comes out of the prefill, without a verify step.
            verified = max(1, piece.steps - 1)
            correct = max(0, request.tokens - 1 - verified)
            proposed = self._drafts * verified
            meta |= {
                "spec_accept_rate": min(1.0, correct / proposed),
                "spec_accept_length": max(0, request.tokens - 1) / verified,
                "spec_num_correct_drafts": correct,
                "spec_num_proposed_drafts": proposed,
                "spec_verify_ct": piece.steps - 1,
            }
        return meta
