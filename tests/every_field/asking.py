"""Asks a served engine, and separates a fault of Antefix from a right answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.every_field.message_values import PATH as MESSAGES
from tests.every_field.values import CHAT, COMPLETIONS, DETOKENIZE, RESPONSES, TOKENIZE
from tests.fakes.engine import MODEL

# What a request has at least, so that an answer takes few tokens.
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "PROMPT"}], "max_tokens": 3},
    COMPLETIONS: {"prompt": "PROMPT", "max_tokens": 3},
    RESPONSES: {"input": "PROMPT", "max_output_tokens": 3},
    MESSAGES: {"messages": [{"role": "user", "content": "PROMPT"}], "max_tokens": 3},
    TOKENIZE: {"messages": [{"role": "user", "content": "PROMPT"}]},
    DETOKENIZE: {"tokens": [1, 2, 3]},
}


_OF_SERVERS = ("server_error", "api_error", "overloaded_error")


@dataclass(frozen=True)
class Answer:
    """`fault` is None where a client can be content: it got an answer, or an error that names its
    mistake."""

    status: int
    body: str

    @property
    def fault(self) -> str | None:
        if self.status >= 500:
            return f"{self.status}: {self.body[:300]}"
        for line in self.body.splitlines():
            if line.startswith("data: {") and '"error"' in line:
                error = json.loads(line[6:]).get("error")
                if isinstance(error, dict) and _is_the_servers(error):
                    return f"in a stream: {line[:300]}"
        return None


def _is_the_servers(error: dict[str, Any]) -> bool:
    code = error.get("code")
    return (isinstance(code, int) and code >= 500) or error.get("type") in _OF_SERVERS


def request(path: str, prompt: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The least request with that prompt, and the fields over it."""
    least = json.loads(json.dumps(LEAST[path]).replace("PROMPT", prompt))
    return {"model": MODEL, **least, **fields}


async def ask(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Answer:
    data = json.dumps(body).replace("Infinity", "1e400")
    headers = {"content-type": "application/json"}
    async with http.post(path, data=data, headers=headers) as answer:
        text = (await answer.read()).decode(errors="replace")
        return Answer(answer.status, text)
