"""Clients of the API that come from npm, and what they make of a stream."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests import npm

HERE = Path(__file__).parent
SCRIPT = "read_streams.mjs"


async def errors_in_streams(base_url: str, key: str, model: str) -> dict[str, Any]:
    """What each client reports of a stream of each API. Skips the test without node."""
    folder = await asyncio.to_thread(npm.installed, HERE, SCRIPT)
    process = await asyncio.create_subprocess_exec(
        "node", SCRIPT, base_url, key, model, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    reported: dict[str, Any] = json.loads(said)
    return reported
