"""Thousands of wrong requests to a fleet, on all of its ports, and it is as it was before.

ANTEFIX_FUZZ_MINUTES, which `make fuzz` sets, is for how long they are sent; without it there are
a few of each kind, the same every time.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
from hypothesis import strategies as st

from cli.local import cluster, processes
from tests.real.conftest import RunningFleet
from tests.wrong_requests.asking import Port
from tests.wrong_requests.clients import faults_of_clients
from tests.wrong_requests.laws import assert_no_faults
from tests.wrong_requests.making import (
    of_document,
    wrong_headers,
    wrong_requests,
    wrong_targets,
)

MINUTES = float(os.environ.get("ANTEFIX_FUZZ_MINUTES", "0"))
# What each of the tests has of them: most is for what reaches engines.
SHARES = {"bodies": 0.5, "document": 0.3, "clients": 0.15, "metrics": 0.05}
IDLE_WITHIN_S = 60.0
OWN = ("ray::ServeReplica", "VLLM::", "raylet", "gcs_server", "redis-server")

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900 + 120 * MINUTES)]


def port_of(url: str, key: str = "", **of: Any) -> Port:
    address = urlsplit(url)
    return Port(str(address.hostname), int(address.port or 0), key, **of)


def until(share: str) -> float:
    return time.monotonic() + 60 * MINUTES * SHARES[share]


@pytest.fixture
def public(fleet: RunningFleet) -> Port:
    return port_of(fleet.root, fleet.api_key)


@pytest.fixture
def metrics(fleet: RunningFleet) -> Port:
    state = fleet.home.state()
    assert state is not None
    return port_of(state.metrics_url, tells_errors=False, at_once=8)


@pytest.fixture(autouse=True)
async def unharmed(fleet: RunningFleet, http: aiohttp.ClientSession) -> AsyncIterator[None]:
    await idle(http)
    running, failed = running_in(fleet), loop_failures(fleet)
    sizes = {file: file.stat().st_size for file in logs_of(fleet)}
    yield
    await idle(http)
    assert running_in(fleet) == running
    assert loop_failures(fleet) == failed
    assert not list(tracebacks_in(fleet, sizes))
    for model in (fleet.model, fleet.other_model):
        body = {"model": model, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3}
        async with http.post("/v1/chat/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["choices"]


async def idle(http: aiohttp.ClientSession) -> None:
    """Ready, and nothing is under way, in a queue or in an engine."""
    ends = time.monotonic() + IDLE_WITHIN_S
    while busy := await _busy(http):
        assert time.monotonic() < ends, busy
        await asyncio.sleep(0.2)


async def _busy(http: aiohttp.ClientSession) -> list[str]:
    async with http.get("/health/ready") as answer:
        if answer.status != 200:
            return [await answer.text()]
    async with http.get("/antefix/status") as answer:
        pools = (await answer.json())["pools"]
    waiting = [str(pool["admission"]) for pool in pools.values() if pool["admission"]["queued"]]
    replicas = [replica for pool in pools.values() for replica in pool["replicas"]]
    return waiting + [str(of) for of in replicas if of["waiting"] or of["running"]]


def running_in(fleet: RunningFleet) -> dict[int, str]:
    """What serves requests, by its process id."""
    state = fleet.home.state()
    assert state is not None
    found = {}
    for process in processes.processes(state.run_id):
        try:
            title = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if any(name in title for name in OWN):
            found[process.pid] = next(name for name in OWN if name in title)
    return found


def loop_failures(fleet: RunningFleet) -> list[str]:
    state = fleet.home.state()
    assert state is not None
    with urllib.request.urlopen(state.metrics_url, timeout=60) as answer:
        return re.findall(r"^antefix_loop_failures_total.*", answer.read().decode(), re.MULTILINE)


def logs_of(fleet: RunningFleet) -> list[Path]:
    state = fleet.home.state()
    assert state is not None
    folders = [fleet.home.logs, cluster.ray_logs(state)]
    return [file for folder in folders if folder for file in folder.rglob("*") if file.is_file()]


def tracebacks_in(fleet: RunningFleet, sizes: dict[Path, int]) -> Iterator[str]:
    """What the logs have had since then of them."""
    for file in logs_of(fleet):
        with file.open("rb") as log:
            log.seek(sizes.get(file, 0))
            written = log.read()
        if (at := written.find(b"Traceback")) >= 0:
            yield f"{file}: {written[max(0, at - 500) : at + 5000].decode(errors='replace')}"


def test_no_malformed_request_causes_a_server_error(fleet: RunningFleet, public: Port) -> None:
    assert_no_faults(public, wrong_requests(fleet.model), 20, until("bodies"))


def test_requests_generated_from_the_openapi_document_cause_no_server_error(
    fleet: RunningFleet, public: Port, document: dict[str, Any]
) -> None:
    described = st.one_of(of_document(document, fleet.model))
    assert_no_faults(public, described, 10, until("document"))


@pytest.fixture
async def document(http: aiohttp.ClientSession) -> dict[str, Any]:
    async with http.get("/openapi.json") as answer:
        described: dict[str, Any] = await answer.json()
        return described


def test_misbehaving_clients_cause_no_faults(
    fleet: RunningFleet, public: Port, metrics: Port
) -> None:
    ports = [public, metrics, port_of(fleet.replicas()[0]["url"])]

    async def on_all_ports() -> list[str]:
        found = await asyncio.gather(*(faults_of_clients(port, fleet.model) for port in ports))
        return [fault for of_port in found for fault in of_port]

    ends = until("clients")
    while True:
        faults = asyncio.run(on_all_ports())
        assert not faults, "\n".join(faults)
        if time.monotonic() >= ends:
            return


def test_wrong_requests_to_the_metrics_port_cause_no_faults(
    fleet: RunningFleet, metrics: Port
) -> None:
    odd = wrong_targets() | wrong_headers(fleet.model)
    assert_no_faults(metrics, odd, 10, until("metrics"))
