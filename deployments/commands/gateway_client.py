"""A few plain calls to a fleet's gateway, with the standard library alone: it imports fast."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

from deployments.local.errors import SetupError
from deployments.local.home import FleetState, Keys

READY_SECONDS = 60.0
FIRST_QUESTION = "What is the capital of France?"
FIRST_ANSWER_TOKENS = 32

# Not the environment's proxies: the fleet is on this machine or in its network.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class GatewayError(SetupError):
    """The gateway cannot be reached, or answers with an error; `status` 0 for the former."""

    def __init__(self, message: str, remedy: str, status: int = 0) -> None:
        super().__init__(message, remedy)
        self.status = status


class GatewayClient:
    def __init__(self, base_url: str, api_key: str) -> None:
        self._origin = base_url.removesuffix("/v1")
        self._api_key = api_key

    @classmethod
    def of(cls, state: FleetState, keys: Keys) -> GatewayClient:
        return cls(state.base_url, keys.api_key)

    def status(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """`deployments.status.fleet_status` of the running fleet. Raises GatewayError."""
        return self._call("/antefix/status", None, timeout_s)

    def wait_until_ready(self) -> None:
        """Raises GatewayError with the last answer when it is not ready in time."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self._call("/health/ready", None, 5.0)
                return
            except GatewayError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def ask(self, model: str, question: str, timeout_s: float) -> str:
        """One short answer, as deterministic as the engine is. Raises GatewayError."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": FIRST_ANSWER_TOKENS,
        }
        answer = self._call("/v1/chat/completions", body, timeout_s)
        return str(answer["choices"][0]["message"]["content"]).strip()

    def _call(self, path: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        request = urllib.request.Request(
            self._origin + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "authorization": f"Bearer {self._api_key}",
                "content-type": "application/json",
            },
        )
        try:
            with _opener.open(request, timeout=timeout_s) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            message = f"{self._origin}{path} answers {error.code}: {_words(error)}"
            raise GatewayError(message, "see antefix logs", error.code) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise GatewayError(
                f"{self._origin}{path} cannot be read: {reason}", "see antefix logs"
            ) from error


def _words(error: urllib.error.HTTPError) -> str:
    text = error.read(2000).decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or error.reason
