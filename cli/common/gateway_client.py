"""A small client for a fleet's gateway. It uses only the standard library, so it imports fast."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from cli.common.hints import address_of, key_of, logs_of
from cli.local.home import FleetState, Keys
from common.errors import Problem, Unreachable

READY_SECONDS = 60.0
# The embedded model answers it well with any dtype: no token is a near-tie.
FIRST_QUESTION = "What is the capital of Japan?"
FIRST_ANSWER_TOKENS = 32
# A gateway waits this long for an engine to write its traces.
PROFILE_WRITING_S = 600.0

# A longer answer that is not an error in JSON is cut.
MOST_CHARACTERS = 2000

# Without the environment's proxies: the fleet is on this machine or in its network.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class GatewayError(Problem):
    """The gateway returns an error. `status` is its HTTP status, or 0 without one."""

    def __init__(self, message: str, remedy: str, status: int = 0) -> None:
        super().__init__(message, remedy)
        self.status = status


class UnreachableGateway(GatewayError, Unreachable):
    """The gateway does not answer."""


@dataclass(frozen=True)
class Streamed:
    """A streamed answer. `ttft_s` is the time from sending the request to its first event.

    `usage` is empty unless `stream_options` requests it.
    """

    request_id: str
    ttft_s: float
    text: str
    usage: Mapping[str, Any]


class GatewayClient:
    """A client. `base_url` may end in /v1 or not."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._origin = base_url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._base_url = base_url

    @classmethod
    def of(cls, state: FleetState, keys: Keys) -> GatewayClient:
        return cls(state.base_url, keys.api_key)

    def status(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """`fleet_status` of the running fleet (`deployments.gateway.inquiries.status`).

        Raises GatewayError.
        """
        return self._call("/antefix/status", None, timeout_s)

    def wait_until_ready(
        self, within_s: float = READY_SECONDS, on_wait: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wait until the fleet is ready. Raises GatewayError with the last answer if it is not in
        time.

        `on_wait` gets the current obstacle each time it is read.
        """
        deadline = time.monotonic() + within_s
        while True:
            try:
                self._call("/health/ready", None, 5.0)
                return
            except GatewayError as error:
                if time.monotonic() > deadline:
                    raise
                on_wait(error.message)
            time.sleep(0.2)

    def ask(self, model: str, question: str, timeout_s: float) -> str:
        """Return one short answer, as deterministic as the engine is. Raises GatewayError."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": FIRST_ANSWER_TOKENS,
        }
        answer = self._call("/v1/chat/completions", body, timeout_s)
        return str(answer["choices"][0]["message"]["content"]).strip()

    def models(self, timeout_s: float = 10.0) -> list[str]:
        """Return the fleet's models, the first pool's first. Raises GatewayError."""
        return [str(card["id"]) for card in self._call("/v1/models", None, timeout_s)["data"]]

    def explanation(self, request_id: str, timeout_s: float = 10.0) -> dict[str, Any]:
        """Return the explanation of a request. Raises GatewayError, with 404 if it is not known
        (yet)."""
        return self._call(f"/antefix/requests/{quote(request_id)}", None, timeout_s)

    def profile(self, pool: str | None, replica: str | None, seconds: float) -> dict[str, Any]:
        """Profile an engine, and return the paths of its traces. Raises GatewayError.

        `pool` and `replica` None: the only one.
        """
        asked = {"pool": pool, "replica": replica, "seconds": f"{seconds:g}"}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return self._call(f"/antefix/profile?{query}", {}, seconds + PROFILE_WRITING_S)

    def canaries(self) -> dict[str, Any]:
        """The canary of each model. Raises GatewayError."""
        return self._call("/antefix/canaries", None, 10.0)

    def adapters(self) -> dict[str, Any]:
        """The LoRA adapters, by name. Raises GatewayError."""
        return self._call("/antefix/adapters", None, 10.0)

    def load_adapter(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Load an adapter, and return it. Raises GatewayError."""
        return self._call("/v1/load_lora_adapter", fields, 660.0)

    def unload_adapter(self, name: str) -> dict[str, Any]:
        """Unload an adapter. Raises GatewayError."""
        return self._call("/v1/unload_lora_adapter", {"lora_name": name}, 30.0)

    def end_canary(self, model: str, action: str) -> dict[str, Any]:
        """Promote or abort a model's canary, and return it. Raises GatewayError."""
        return self._call(f"/antefix/canaries/{quote(model)}?action={action}", {}, 10.0)

    def decisions(self, limit: int, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """Return the last explanations, newest first. Raises GatewayError."""
        found = self._call(f"/antefix/decisions?limit={limit}", None, timeout_s)
        return list(found["decisions"])

    def stream(
        self,
        body: dict[str, Any],
        headers: dict[str, str],
        timeout_s: float,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> Streamed:
        """Stream a chat's answer to its end. Raises GatewayError, also if the stream is
        interrupted.

        `timeout_s` applies to each event, not to the whole answer. `on_event` gets the id of the
        replica that started the answer, for each event.
        """
        path, began = "/v1/chat/completions", time.monotonic()
        ttft_s, whole, text = 0.0, False, ""
        usage: Mapping[str, Any] = {}
        with self._answer(path, {**body, "stream": True}, timeout_s, headers) as response:
            for line in response:
                data = line.removeprefix(b"data: ").strip()
                if not line.startswith(b"data: ") or (whole := data == b"[DONE]"):
                    continue
                event = json.loads(data)
                if error := event.get("error"):
                    raise GatewayError(
                        f"the stream was interrupted: {error['message']}", logs_of(self._base_url)
                    )
                ttft_s = ttft_s or time.monotonic() - began
                usage = event.get("usage") or usage
                deltas = [choice.get("delta", {}) for choice in event.get("choices", ())]
                text += "".join(delta.get("content") or "" for delta in deltas)
                on_event(response.headers.get("x-antefix-replica", ""))
            request_id = response.headers.get("x-request-id", "")
        if not (ttft_s and whole):
            raise GatewayError("the stream ended early", logs_of(self._base_url))
        return Streamed(request_id, ttft_s, text, usage)

    def _call(self, path: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        with self._answer(path, body, timeout_s) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    @contextmanager
    def _answer(
        self,
        path: str,
        body: dict[str, Any] | None,
        timeout_s: float,
        headers: dict[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield the response. Errors inside the block become GatewayError too."""
        request = urllib.request.Request(
            self._origin + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "authorization": f"Bearer {self._api_key}",
                "content-type": "application/json",
                **(headers or {}),
            },
        )
        try:
            with _opener.open(request, timeout=timeout_s) as response:
                yield response
        except urllib.error.HTTPError as error:
            said, has_advice = _words(error)
            message = f"{self._origin}{path} returned HTTP {error.code}: {said}"
            remedy = logs_of(self._base_url)
            if error.code == HTTPStatus.UNAUTHORIZED:
                remedy = key_of(self._base_url)
            elif has_advice and error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                remedy = ""
            raise GatewayError(message, remedy, error.code) from error
        except urllib.error.URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise UnreachableGateway(
                f"could not connect to {self._origin}: {reason}", address_of(self._base_url)
            ) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            is_answer = isinstance(error, ValueError)  # not one of a gateway
            raise (GatewayError if is_answer else UnreachableGateway)(
                f"{self._origin}{path} cannot be read: {error}", logs_of(self._base_url)
            ) from error


def _words(error: urllib.error.HTTPError) -> tuple[str, bool]:
    """Return what the server answered, and whether that contains advice."""
    text = error.read().decode(errors="replace")
    try:
        said = json.loads(text)
        if "waiting_for_pools" in said:
            return f"waiting for a replica of {', '.join(said['waiting_for_pools'])}", False
        message = str(said["error"]["message"]).removesuffix(".")
        return message, ". " in message
    except (ValueError, KeyError, TypeError):
        return text.strip()[:MOST_CHARACTERS] or error.reason, False
