"""The fields of each path, as a gateway describes them."""

from __future__ import annotations

from typing import Any

import aiohttp

from tests.every_field.asking import LEAST


async def fields_of(http: aiohttp.ClientSession) -> dict[str, set[str]]:
    """Return the fields of each path of `LEAST`."""
    async with http.get("/openapi.json") as answer:
        described = await answer.json()
    return {path: _fields(described, path) for path in LEAST}


def _fields(described: dict[str, Any], path: str) -> set[str]:
    body = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schemas = [
        described["components"]["schemas"][one["$ref"].rpartition("/")[2]]
        for one in body.get("anyOf", [body])
    ]
    return {name for schema in schemas for name in schema["properties"]}
