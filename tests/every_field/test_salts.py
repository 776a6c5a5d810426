"""A salt separates cached prompts where the request itself has no field for one."""

from __future__ import annotations

import aiohttp
import pytest

from deployments.wire.headers import CACHED_TOKENS_HEADER, SALT_HEADER
from tests.every_field.served_engine import SPENT_PATH
from tests.every_field.serving import Served
from tests.fakes.engine import MODEL

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


async def test_prompts_with_different_salts_share_no_cached_blocks(served: Served) -> None:
    body = {"model": MODEL, "prompt": "A ferry carries a car. " * 30, "max_tokens": 1}
    url, found = served.spent_url.removesuffix(SPENT_PATH) + "/v1/completions", []
    async with aiohttp.ClientSession(headers=served.access) as http:
        for salt in ("one", "one", "two", "two"):
            async with http.post(url, json=body, headers={SALT_HEADER: salt}) as answer:
                assert answer.status == 200
                found.append(int(answer.headers[CACHED_TOKENS_HEADER]))
    assert found[0] == found[2] == 0
    assert found[1] == found[3] > 0
