"""LiteLLM's own limiter of tokens a minute, as one proxy process has it, beside `gateway_process`.

Run by a Python that has `litellm[proxy]`, not by ours: it imports nothing of Antefix, and reads the
same lines. What it lets in is noted with the tokens that the request is answered with.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any, TextIO

from fastapi import HTTPException
from litellm.caching.caching import DualCache, RedisCache
from litellm.proxy._types import UserAPIKeyAuth
from litellm.proxy.hooks.parallel_request_limiter_v3 import _PROXY_MaxParallelRequestsHandler_v3
from litellm.proxy.utils import InternalUsageCache

ASKERS = 4
AGAIN_S = 0.05


class Limiter:
    def __init__(self, port: int, limit: int) -> None:
        self._cache = DualCache(redis_cache=RedisCache(host="127.0.0.1", port=port))
        self._limit = limit
        self._handler = _PROXY_MaxParallelRequestsHandler_v3(InternalUsageCache(self._cache))

    async def lets_in(self, scope: str, tokens: int) -> bool:
        """A request that is answered with so many tokens, prompt included."""
        key = UserAPIKeyAuth(api_key=scope, tpm_limit=self._limit)
        data = {"model": "m", "messages": [{"role": "user", "content": ""}], "max_tokens": tokens}
        try:
            await self._handler.async_pre_call_hook(
                user_api_key_dict=key, cache=self._cache, data=data, call_type="completion"
            )
        except HTTPException:
            return False
        return True


async def main(port: int, limit: int, file: TextIO) -> None:
    limiter = Limiter(port, limit)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        asked: dict[str, Any] = json.loads(line)
        scope, tokens = asked["scope"], asked["tokens"]

        async def ask(scope: str, tokens: int) -> bool:
            let_in = await limiter.lets_in(scope, tokens)
            if let_in:
                print(f"{scope} {time.time():.6f} {tokens} 0", file=file, flush=True)
            return let_in

        if asked["do"] == "burst":
            await asyncio.sleep(max(0.0, asked["at"] - time.time()))
            await asyncio.gather(*(ask(scope, tokens) for _ in range(asked["requests"])))
        else:
            until = time.monotonic() + asked["for_s"]
            while time.monotonic() < until:
                await asyncio.gather(
                    *(ask(scope, random.randint(1, tokens)) for _ in range(ASKERS))
                )
                await asyncio.sleep(AGAIN_S)
        print("{}", flush=True)


if __name__ == "__main__":
    url, _, limit, path = sys.argv[1:]
    with open(path, "a") as granted_file:  # noqa: PTH123
        asyncio.run(main(int(url.rpartition(":")[2].partition("/")[0]), int(limit), granted_file))
