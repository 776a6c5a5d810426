"""One answer as its client receives it: its events, their times, and the whole that they make."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from cli.gateway.stream_client import Endpoint

# A longer answer has hung.
HUNG_S = 240.0
NOT_OURS = "no Antefix error"
_RESUMED = ": antefix-resumed "
DONE, COMPLETED = "data: [DONE]", "event: response.completed"
# Different in each answer; ids of tools are counted while events are joined.
_OF_ONE_ANSWER = frozenset({"id", "item_id", "call_id", "created", "created_at", "completed_at"})
# Depends on the cache of the first engine.
_OF_CACHES = ("prompt_tokens_details", "input_tokens_details")


@dataclass
class ClientAnswer:
    """`code`: of its error, or how its connection ended; None: it is whole. `events` of a stream,
    with their times in seconds of the loop's clock; `body` of other answers. `resumed`:
    `continued` where another engine resumed it, whose tokens may differ."""

    began: float
    ended: float = math.inf
    replica: str = ""
    code: str | None = None
    resumed: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    came_at: list[float] = field(default_factory=list)
    body: Any = None

    @property
    def request_id(self) -> str:
        return self.headers.get("x-request-id", "")

    @property
    def token_ids(self) -> dict[int, list[int]]:
        """By choice, as far as they came; empty for a response, which has none."""
        ids: dict[int, list[int]] = {}
        for said in [self.body] if self.body else map(_said, self.events):
            for choice in said.get("choices", ()):
                ids.setdefault(choice["index"], []).extend(choice.get("token_ids") or ())
        return {index: tokens for index, tokens in ids.items() if tokens}

    @property
    def whole(self) -> dict[str, Any]:
        """Its content, comparable with another's, and `usage`. Raises ValueError."""
        said = joined(self.events) if self.body is None else dict(self.body)
        if len(heads := said.pop("heads", {""})) != 1:
            raise ValueError(f"it is several answers: {heads}")
        usage = {k: v for k, v in (said.pop("usage", None) or {}).items() if k not in _OF_CACHES}
        return {"said": _of_any_answer(said), "usage": usage}

    def gap_s(self, since: float) -> float:
        """The longest between two events of which the second came after `since`."""
        pairs = zip(self.came_at, self.came_at[1:], strict=False)
        return max((then - last for last, then in pairs if then > since), default=0.0)


async def ask(
    answer: ClientAnswer,
    endpoint: Endpoint,
    path: str,
    body: Mapping[str, Any],
    within_s: float = HUNG_S,
) -> None:
    """Over a new connection. The outcome is in `answer`, whose events are added to."""
    connector = aiohttp.TCPConnector(force_close=True)
    try:
        async with (
            asyncio.timeout(within_s),
            aiohttp.ClientSession(connector=connector, headers=endpoint.headers) as http,
            http.post(endpoint.url + path, json=body) as response,
        ):
            answer.headers |= {name.lower(): value for name, value in response.headers.items()}
            answer.replica = answer.headers.get("x-antefix-replica", "")
            answer.resumed = answer.headers.get("x-antefix-resumed", "")
            if response.content_type != "text/event-stream":
                answer.body = await response.json(content_type=None)
                is_ok = response.status == 200
                answer.code = _code(answer.body) or (None if is_ok else NOT_OURS)
            else:
                await _read(answer, response)
    except TimeoutError:
        answer.code = "hung"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        answer.code = f"cut ({type(error).__name__})"
    answer.ended = now()


async def _read(answer: ClientAnswer, response: aiohttp.ClientResponse) -> None:
    held = b""
    async for piece in response.content.iter_any():
        *blocks, held = (held + piece).split(b"\n\n")
        for block in blocks:
            if block.startswith(b":"):
                answer.resumed = block.decode().partition(_RESUMED)[2] or answer.resumed
                continue
            answer.events.append(block.decode())
            answer.came_at.append(now())
    last = answer.events[-1] if answer.events else ""
    if last != DONE and not last.startswith(COMPLETED):
        answer.code = _code(_said(last)) or "no end"


def joined(events: list[str]) -> dict[str, Any]:
    """What a client has after these events, whatever their boundaries, without ids of tools. Raises
    ValueError for a stream that is not whole."""
    if events[-1].startswith(COMPLETED):
        return _response(events)
    if events[-1] != DONE:
        raise ValueError(f"it ends with {events[-1]}")
    whole: dict[str, Any] = {"choices": {}, "heads": set(), "usage": None}
    for event in events[:-1]:
        said = _said(event)
        if "error" in said:
            raise ValueError(f"it got {said['error']}")
        whole["heads"].add((said["id"], said["created"], said["model"]))
        whole["usage"] = said.get("usage") or whole["usage"]
        for choice in said["choices"]:
            _join(whole["choices"].setdefault(choice["index"], {}), choice)
    return whole


def _response(events: list[str]) -> dict[str, Any]:
    """The last event repeats all others. Raises ValueError where these differ."""
    told = list(map(_said, events))
    if [event["sequence_number"] for event in told] != list(range(len(told))):
        raise ValueError("its events are not numbered one after the other")
    response: dict[str, Any] = told[-1]["response"]
    ids = {item["id"] for item in response["output"]}
    deltas: dict[str, str] = {}
    for event in told[:-1]:
        item = event.get("item_id") or event.get("item", {}).get("id")
        if item is not None and item not in ids:
            raise ValueError(f"its item {item} is not in what it says at its end")
        if event["type"].endswith(".delta"):
            deltas[item] = deltas.get(item, "") + event["delta"]
    for item in response["output"]:
        parts = item.get("content") or [{"text": item.get("arguments")}]
        if deltas.get(item["id"]) != parts[0]["text"]:
            raise ValueError(f"its events do not say what its item {item['id']} does")
    said = [event["response"] for event in told if "response" in event]
    heads = {(one["id"], one["created_at"]) for one in said}
    return {**response, "heads": heads}


def _join(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if name == "id":
            whole["ids"] = whole.get("ids", 0) + 1
        elif isinstance(value, str) and name not in ("finish_reason", "role", "type"):
            whole[name] = whole.get(name, "") + value
        elif isinstance(value, dict):
            _join(whole.setdefault(name, {}), value)
        elif name == "tool_calls":
            for call in value:
                _join(whole.setdefault(name, {}).setdefault(call["index"], {}), call)
        elif isinstance(value, list):
            whole[name] = whole.get(name, []) + value
        elif value is not None:
            whole[name] = value


def near(one: Any, other: Any) -> bool:
    """Equal, except the last bits of logprobs: prefill and decode add in different order."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-3)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(near(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    return bool(one == other)


def texts(said: Any) -> list[str]:
    """The text of each choice of an answer's `whole`, or the arguments of its tool call."""
    choices = said["choices"]
    found = []
    for choice in choices.values() if isinstance(choices, dict) else choices:
        message = choice.get("delta") or choice.get("message") or choice
        calls = message.get("tool_calls") or ()
        called = list(calls.values() if isinstance(calls, dict) else calls)
        text = called[0]["function"]["arguments"] if called else None
        found.append(str(text or message.get("content") or message.get("text") or ""))
    return found


def _of_any_answer(said: Any) -> Any:
    if isinstance(said, dict):
        return {k: _of_any_answer(v) for k, v in said.items() if k not in _OF_ONE_ANSWER}
    return [_of_any_answer(one) for one in said] if isinstance(said, list) else said


def _said(event: str) -> Any:
    """The JSON of one event; empty for the last, and for a comment."""
    _, found, data = event.partition("data: ")
    return json.loads(data) if found and data != "[DONE]" else {}


def _code(said: Any) -> str | None:
    """None without an error."""
    error = said.get("error") if isinstance(said, dict) else None
    return str(error.get("code") or NOT_OURS) if isinstance(error, dict) else None


def now() -> float:
    """Seconds of the loop's clock."""
    return asyncio.get_running_loop().time()
