"""A fleet that has one of everything, with a Prometheus: it serves, is overloaded and loses an
engine. Then every query is put to it, and last, as it is a fleet like any user's, it crashes.

Not in tests/real, whose fleet has ended by now: an idle fleet of three engines takes a fifth of
two cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from cli.local import processes
from cli.local.home import FleetState, Home
from tests.fakes.collector import Collector, collector
from tests.missing import program
from tests.prometheus import Prometheus
from tests.real.conversations import text

SEEN_FILE = Path(__file__).with_name("fleet.yaml")
TRACE_ID, SPAN_ID, SECRET_PROMPT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "Xyzzy."
MODEL, OTHER_MODEL, TRIED = (f"smollm2-135m-{name}" for name in ("instruct", "other", "tried"))
# Several times what one engine can begin within the SLO's two seconds.
BURST = 40


@dataclass(frozen=True)
class Seen:
    """A fleet, and what watches it."""

    home: Home
    fleet_file: Path
    root: str
    headers: dict[str, str]
    prometheus: Prometheus
    alertmanager: str
    metrics_url: str
    collector: Collector

    def state(self) -> FleetState:
        state = self.home.state()
        assert state is not None
        return state

    def alerts(self) -> set[str]:
        """Names of those that have reached the Alertmanager."""
        with urllib.request.urlopen(f"{self.alertmanager}/api/v2/alerts", timeout=60) as answer:
            return {alert["labels"]["alertname"] for alert in json.load(answer)}


def antefix(
    home: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        env={**os.environ, **(env or {}), "ANTEFIX_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="session")
def traces() -> Iterator[Collector]:
    """In a separate thread: it has to answer while a test waits for a command."""
    loop, running = asyncio.new_event_loop(), collector()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(60)
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="session")
def seen(traces: Collector, small_model: Path) -> Iterator[Seen]:
    for needed in ("prometheus", "alertmanager"):
        program(needed)
    home = Path(tempfile.mkdtemp(prefix="afx"))
    fleet_file = home / "fleet.yaml"
    fleet_file.write_text(SEEN_FILE.read_text().replace("SMALL", str(small_model)))
    try:
        up = antefix(
            home,
            *("up", str(fleet_file), "--port", "0", "--with-prometheus", "-o", "json"),
            env=traces.environment,
        )
        assert up.returncode == 0, up.stderr
        started = json.loads(up.stdout)
        headers = {"authorization": f"Bearer {started['api_key']}"}
        seen = Seen(
            Home(home),
            fleet_file,
            started["base_url"].removesuffix("/v1"),
            headers,
            Prometheus(started["prometheus_url"]),
            started["alertmanager_url"],
            started["metrics_url"],
            traces,
        )
        asyncio.run(_live_through_it(seen))
        yield seen
    finally:
        antefix(home, "down", "--now")
        shutil.rmtree(home, ignore_errors=True)


async def _live_through_it(seen: Seen) -> None:
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        seen.root, headers=seen.headers, timeout=timeout, connector=connector
    ) as http:
        # while one replica of two is warm: it is promoted
        statuses = await asyncio.gather(
            *(_ask(http, f"{i} {text(('burst', i), 250)}", max_tokens=8) for i in range(BURST))
        )
        assert set(statuses) == {200, 429}
        # one after the other: the first is computed, the others find its prefix
        for number in range(4):
            assert await _ask(http, f"{text('prefix', 200)} Request {number}.") == 200
        traced = {"x-antefix-priority": "batch", "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
        assert await _ask(http, SECRET_PROMPT, headers=traced) == 200
        # enough steps for a trial without drafts, even where each brings four tokens
        assert await _ask(http, "one two three " * 20, max_tokens=320) == 200
        assert await _ask(http, "Once", OTHER_MODEL) == 200
        assert await _ask(http, "late", headers={"x-antefix-timeout": "0.01"}) == 504
        assert await _ask(http, "whose", headers={"authorization": "Bearer a wrong key"}) == 401
        await _lose_an_engine(seen, http)


async def _lose_an_engine(seen: Seen, http: aiohttp.ClientSession) -> None:
    """While it streams: what it has begun to answer is interrupted."""
    body = {"model": OTHER_MODEL, "prompt": "Once", "max_tokens": 800, "ignore_eos": True}
    async with http.post("/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.status == 200
        await answer.content.readany()
        replica_id = answer.headers["x-antefix-replica"]
        _engine_of(seen, replica_id).kill()
        assert b'"engine_unavailable"' in await answer.content.read()


def _engine_of(seen: Seen, replica_id: str) -> psutil.Process:
    owner = f"/engine/other/{replica_id}/owner"
    for process in processes.processes(seen.state().run_id):
        if any(file.path.endswith(owner) for file in process.open_files()):
            return process
    raise AssertionError(f"no process counts as {replica_id}")


async def _ask(
    http: aiohttp.ClientSession,
    prompt: str,
    model: str = MODEL,
    headers: dict[str, str] | None = None,
    max_tokens: int = 16,
) -> int:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        # the model's own has a top_p, for which each step sorts its 49,152 tokens
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    async with http.post("/v1/chat/completions", json=body, headers=headers) as answer:
        await answer.read()
        return answer.status
