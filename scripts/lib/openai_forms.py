"""How OpenAI's routes say tokens: whole answers and the parts of streams, with their log-probabilities."""

from __future__ import annotations

from typing import Any

from tiny_model import Token


class Text:
    """How completions say tokens."""

    chunk = "text_completion"

    @staticmethod
    def whole(made: list[Token], *, said: bool) -> dict[str, Any]:
        """An answer's part of a choice."""
        logprobs = {
            "tokens": [token.text for token in made],
            "token_logprobs": [token.logprob for token in made],
            "top_logprobs": None,
            "text_offset": [],
        }
        return {"text": "".join(token.text for token in made), "logprobs": logprobs if said else None}

    part = whole


class Chat:
    """How chat completions say tokens."""

    chunk = "chat.completion.chunk"

    @staticmethod
    def whole(made: list[Token], *, said: bool) -> dict[str, Any]:
        """A whole answer's part of a choice."""
        message = {"role": "assistant", "content": "".join(token.text for token in made)}
        return {"message": message, "logprobs": Chat._logprobs(made) if said else None}

    @staticmethod
    def part(made: list[Token], *, said: bool) -> dict[str, Any]:
        """A chunk's part of a choice."""
        delta = {"role": "assistant", "content": "".join(token.text for token in made)}
        return {"delta": delta, "logprobs": Chat._logprobs(made) if said else None}

    @staticmethod
    def _logprobs(made: list[Token]) -> dict[str, Any]:
        entries: list[dict[str, Any]] = [
            {"token": token.text, "logprob": token.logprob, "bytes": None, "top_logprobs": []} for token in made
        ]
        return {"content": entries}
