"""A real engine with a disk tier, whose blocks a follower knows: python -m tests.tiers.disk_tier

Takes {"model", "folder", "max_bytes", "secret", "steps"} as JSON on stdin, and "log": a file for
what the engine prints, or null. A step is the name of a function here. Writes one line of JSON with
what the follower predicted at each step, and what the engine did.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from deployments.engine.vllm.adapter import VllmEngine
from deployments.wire.headers import HOST_ONLY, KV_TIERS_HEADER, NO_TIERS
from router.index.cached_blocks import Tier
from router.index.disk_record import DiskRecord, names_key
from router.index.event_stream import EventStream
from tests.served import at_a_url, log_to, stdout_for_the_test
from tests.tiers.host_tier import BLOCK, DOCUMENTS, ENGINE_ARGS, PROMPT, Client, Follower, document

# About 20 blocks of the small model: three documents. The device has 28.
HOST_BYTES = 4_000_000
OWN = document(0)
RANDOM_REQUESTS = 60
# A sweep takes place every 10 s.
SWEPT_S = 25.0
# Less than a block.
PART = 64 << 10


@dataclass
class Scene:
    client: Client
    folder: Path
    record: DiskRecord

    @property
    def files(self) -> list[Path]:
        return [file for file in self.folder.rglob("*.bin") if file.is_file()]

    async def flood(self) -> None:
        """Other documents, until no memory has room for the first one."""
        for number in range(1, 10):
            await self.client.ask(document(number))

    async def computed(self) -> Any:
        return await self.client.ask(OWN)

    async def read(self) -> Any:
        await self.flood()
        return await self.client.ask(OWN)

    async def restarted(self) -> Any:
        """The first request of an engine, which knows what others wrote."""
        await self.look()
        return await self.client.ask(OWN)

    async def look(self) -> None:
        """As a replica does every 30 s."""
        self.client.follower.blocks.set_readable(*await asyncio.to_thread(self.record.read))

    async def refused(self) -> Any:
        await self.flood()
        return await self.client.ask(OWN, headers={KV_TIERS_HEADER: NO_TIERS})

    async def host_only(self) -> Any:
        await self.flood()
        return await self.client.ask(OWN, headers={KV_TIERS_HEADER: HOST_ONLY})

    async def salted(self) -> Any:
        await self.flood()
        return await self.client.ask(OWN, cache_salt="another")

    async def some(self) -> Any:
        rng, some = random.Random(1), []
        for _ in range(RANDOM_REQUESTS):
            length = rng.choice([n for n in range(BLOCK, PROMPT) if n % BLOCK])
            of = await self.client.ask(document(rng.randrange(DOCUMENTS), length), 1)
            some.append([of["in_cache"], of["loadable"], of["reused"]])
        return some

    async def truncated(self) -> Any:
        await self.flood()
        for file in self.files:
            os.truncate(file, file.stat().st_size // 2)
        return await self.client.ask(OWN)

    async def deleted(self) -> Any:
        await self.flood()
        shutil.rmtree(self.folder)
        return await self.client.ask(OWN)

    async def unwritable(self) -> Any:
        """A file is where the folder of blocks has to be, so nothing can be written or read."""
        (blocks,) = {file.parents[2] for file in self.files}
        shutil.rmtree(blocks)
        blocks.touch()
        await self.flood()
        answer = await self.client.ask(OWN)
        blocks.unlink()
        return answer

    async def full(self) -> Any:
        """The volume of the folder is full, and another program frees space again."""
        return await self._full(free=0)

    async def nearly_full(self) -> Any:
        return await self._full(free=PART)

    async def _full(self, free: int) -> Any:
        shutil.rmtree(self.folder, ignore_errors=True)  # a mounted folder remains, empty
        other = self.folder / "other"
        fill(other, free)
        await self.flood()
        answer = await self.client.ask(OWN)
        await self.flood()
        again = await self.client.ask(OWN)
        left = [file.name for file in self.folder.rglob("*.tmp")]
        other.unlink()
        return {"computed": answer, "again": again, "left": left}

    async def swept(self) -> Any:
        """The files and the tokens that the index expects to read, after a sweep."""
        await self.client.ask(OWN)
        await self.flood()
        await asyncio.sleep(SWEPT_S)
        await self.look()
        size = sum(file.stat().st_size for file in self.files)
        return {**await self.client.ask(OWN), "bytes": size}

    async def names(self) -> Any:
        """The names of files, the hashes of blocks, and the modes of folders."""
        blocks = self.client.follower.blocks._blocks
        hashes = [of.hex() if isinstance(of, bytes) else str(of) for of in blocks]
        folders = [self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())]
        modes = {oct(folder.stat().st_mode & 0o777) for folder in folders}
        return {"names": [file.stem for file in self.files], "hashes": hashes, "modes": list(modes)}


def fill(file: Path, free: int) -> None:
    """Write a file that leaves this number of bytes on its volume."""
    written = 0
    with file.open("wb", buffering=0) as lines:
        try:
            while True:
                written += lines.write(bytes(PART))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    os.truncate(file, written - free)


async def told(asked: dict[str, Any]) -> dict[str, Any]:
    if asked.get("log"):
        log_to(Path(asked["log"]))
    disk = {"folder": asked["folder"], "max_bytes": asked["max_bytes"], "expire_s": 3600.0}
    tiers = {"host_bytes": HOST_BYTES, "eviction": "lru", "disk": disk}
    engine = await VllmEngine.start(
        asked["model"], "model", ENGINE_ARGS, kv_tiers=tiers, names_key=names_key(asked["secret"])
    )
    assert engine.disk_folder is not None
    record = DiskRecord(engine.disk_folder, names_key(asked["secret"]))
    follower = Follower(
        engine, EventStream(*engine.events_at), (Tier.HOST, Tier.DISK), on_written=record.note
    )
    following = asyncio.create_task(follower.follow())
    async with at_a_url(engine) as url, aiohttp.ClientSession(url) as http:
        scene = Scene(Client(http, follower), Path(asked["folder"]), record)
        steps: dict[str, Any] = {}
        for name in asked["steps"]:
            step: Callable[[], Awaitable[Any]] = getattr(scene, name)
            steps[name] = await step()
        rate = engine.stats.disk_load_rate
    following.cancel()
    follower.events.close()
    record.close()
    return {"steps": steps, "disk_load_rate": rate}


if __name__ == "__main__":
    answers = stdout_for_the_test()
    print(json.dumps(asyncio.run(told(json.load(sys.stdin)))), file=answers, flush=True)
