"""Clients of the API that come from npm, and what they read of answers and streams."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests import npm

HERE = Path(__file__).parent
SCRIPTS = ("read_answers.mjs", "read_streams.mjs", "agent_turns.mjs")


async def answers(base_url: str, key: str, model: str) -> dict[str, list[str]]:
    """Return the text of an answer of each API, whole and streamed. Skips without node."""
    found: dict[str, list[str]] = await _read(SCRIPTS[0], base_url, key, model)
    return found


async def errors_in_streams(base_url: str, key: str, model: str) -> dict[str, Any]:
    """Return the error that each client reports of a stream of each API. Skips without node."""
    found: dict[str, Any] = await _read(SCRIPTS[1], base_url, key, model)
    return found


async def turns(base_url: str, key: str, model: str) -> dict[str, list[str]]:
    """Return the messages of a conversation with a tool, by API. Skips without node."""
    found: dict[str, list[str]] = await _read(SCRIPTS[2], base_url, key, model)
    return found


async def _read(script: str, base_url: str, key: str, model: str) -> Any:
    folder = await asyncio.to_thread(npm.installed, HERE, *SCRIPTS)
    process = await asyncio.create_subprocess_exec(
        "node", script, base_url, key, model, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(said)
