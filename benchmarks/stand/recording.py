"""Writes down what a fleet says of each request, a line of JSON: for another look at the same run.

Its explanation tells what was predicted of every replica and from what, and where the time went.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from cli.stream_client import Endpoint

AGAIN_S = 0.1


class Recorded(Protocol):
    """What came of a request; `request_id` is empty where it has none."""

    @property
    def request_id(self) -> str: ...


async def write_down(
    http: aiohttp.ClientSession,
    gateway: Endpoint,
    record: Path,
    requests: Iterable[Recorded],
    **told: str,
) -> None:
    """Append a line for each: what is `told` of all, and its explanation, None where none is
    kept."""
    with record.open("a") as file:
        for request in requests:
            explanation = await _explained(http, gateway, request.request_id)
            line = {**told, **vars(request), "explanation": explanation}
            file.write(json.dumps(line) + "\n")


async def _explained(
    http: aiohttp.ClientSession, gateway: Endpoint, request_id: str
) -> dict[str, Any] | None:
    """Asked again where the gateway's Redis is too busy to tell."""
    while request_id:
        url = f"{gateway.url}/antefix/requests/{request_id}"
        async with http.get(url, headers=gateway.headers) as told:
            if told.status == 200:
                explanation: dict[str, Any] = await told.json()
                return explanation
            if told.status != 503:
                return None
        await asyncio.sleep(AGAIN_S)
    return None
