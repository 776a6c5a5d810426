"""Clients of the API that come from npm, and what they make of a stream."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FILES = ("package.json", "package-lock.json", "read_streams.mjs")
INSTALL_TIMEOUT_S = 120


def installed() -> Path:
    """A folder with the clients, kept for later sessions. Skips the test without node or them."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed (https://nodejs.org)")
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()
    folder = Path.home() / ".cache" / f"antefix-npm-{digest[:16]}"
    if not (folder / "node_modules" / ".package-lock.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copy(HERE / name, folder)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S
            )
        except (subprocess.SubprocessError, OSError):
            pytest.skip("npm cannot install the clients in tests/npm_clients: is it offline?")
    return folder


async def errors_in_streams(base_url: str, key: str, model: str) -> dict[str, Any]:
    """What each client reports of a stream of each API."""
    folder = await asyncio.to_thread(installed)
    arguments = ["node", "read_streams.mjs", base_url, key, model]
    process = await asyncio.create_subprocess_exec(
        *arguments, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    reported: dict[str, Any] = json.loads(said)
    return reported
