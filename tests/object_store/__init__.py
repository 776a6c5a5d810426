"""An object store with the API of S3 (https://github.com/jamhall/s3rver)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cli.local.ports import LOOPBACK
from tests import npm
from tests.ports import free_ports

HERE = Path(__file__).parent
BUCKET = "models"


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Serve BUCKET from a folder. Yields the environment of its clients.

    Skips the test without node.
    """
    installed = await asyncio.to_thread(npm.installed, HERE)
    (port,) = free_ports(1)
    script = installed / "node_modules" / "s3rver" / "bin" / "s3rver.js"
    process = await asyncio.create_subprocess_exec(
        *("node", str(script), "--directory", str(folder), "--address", LOOPBACK),
        *("--port", str(port), "--silent", "--configure-bucket", BUCKET),
    )
    try:
        await _wait_for(port)
        yield {
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port}",
            "AWS_ACCESS_KEY_ID": "S3RVER",
            "AWS_SECRET_ACCESS_KEY": "S3RVER",
            "AWS_REGION": "us-east-1",
        }
    finally:
        process.terminate()
        await process.wait()


async def _wait_for(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
