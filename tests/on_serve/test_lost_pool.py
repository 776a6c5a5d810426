"""The only engine of a pool is killed, on a real Ray Serve: what its requests get meanwhile.

Engines are fakes that take a while to start; gateways, Redis and Ray Serve are the real ones.
"""

from __future__ import annotations

import json
import time
from typing import Any

import aiohttp
import pytest

from tests.fakes.serve_fleet import STARTUP_S
from tests.on_serve.conftest import KEY
from tests.on_serve.test_hot_settings import Served, kill
from tests.ports import free_ports
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

# Longer than it takes to be certain that none is up; on a machine that is too busy for that, the
# next engine is killed as well.
START_S = 10.0


@pytest.fixture(scope="module")
def served(empty_serve: None) -> Served:
    gateway_port, metrics_port = free_ports(2)
    pool = {"resources": {"cpus": 0.0}, "slo": {"interactive": {"ttft_s": 2.0}}}
    fleet = {
        "name": "lost",
        "gateway": {"port": gateway_port, "cpus": 0.0},
        "metrics": {"port": metrics_port},
        "pools": {
            "large": {
                **pool,
                "model": "org/large",
                "overflow": {"to": "small", "max_share": 0.01},
                "env": {STARTUP_S: str(START_S)},
            },
            "small": {**pool, "model": "org/small", "engine_args": {"max_model_len": 1000}},
        },
    }
    served = Served(fleet)
    served.give()
    served.settles()
    return served


async def asked(
    http: aiohttp.ClientSession, served: Served, **headers: str
) -> tuple[int, str, float]:
    """The status, who answered or why there was no answer, and the seconds that it took."""
    body = {"model": "large", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {KEY}", **headers}
    began = time.monotonic()
    async with http.post(served.url + "/v1/chat/completions", json=body, headers=headers) as answer:
        told = json.loads(await answer.read())
        said = told["model"] if answer.status == 200 else told["error"]["code"]
        return answer.status, said, time.monotonic() - began


def outage_of(served: Served) -> Any:
    return served.status("large")["admission"]["outage"]


async def test_all_are_answered_though_the_only_engine_is_killed(served: Served) -> None:
    # its start is an outage too, which ends with the first reading of its lease
    await until(lambda: outage_of(served) is None)
    async with aiohttp.ClientSession() as http:
        assert (await asked(http, served))[:2] == (200, "large")
        told = ""
        while told != "small":
            kill(served.settles()["large"])
            status, told, took_s = await asked(http, served)
            assert status == 200
        print(f"\none that came at once was answered after {took_s:.1f} s")

        never = {"x-antefix-overflow": "never"}
        told = ""
        # that it is an outage is not certain while Ray Serve is too busy to say what it runs
        while told != "no_replica" and (before := outage_of(served)) is not None:
            status, told, _ = await asked(http, served, **never, **{"x-antefix-timeout": "1"})
            assert told in {"no_replica", "deadline_exceeded", "large"}
            assert (status == 503) == (told == "no_replica")
            assert before["up_in_s"] > 0
            # whatever the share
            assert (await asked(http, served))[1] in {"small", "large"}
        assert (await asked(http, served, **never))[:2] == (200, "large")
        await until(lambda: outage_of(served) is None)
