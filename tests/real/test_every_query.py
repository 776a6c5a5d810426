"""Every query of every dashboard, rule and alert has data on a living fleet with a real Prometheus.

A fleet that has one of everything serves, is overloaded, and loses an engine; then each query is
put to the Prometheus that `antefix up --with-prometheus` started beside it.
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
from cli.local.home import Home
from tests.fakes.collector import Collector, Told, collector
from tests.missing import program
from tests.prometheus import Prometheus, asked_for, needs_gpus, queries
from tests.real.conversations import text
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

FLEET_FILE = Path(__file__).with_name("seen.yaml")
TRACE_ID, SPAN_ID, SECRET_PROMPT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "Xyzzy."
MODEL, OTHER_MODEL = "smollm2-135m-instruct", "smollm2-135m-other"
# Several times what one engine can begin within the SLO's two seconds.
BURST = 40
# Prometheus reads every 5 s and evaluates every 15 s; some rules are of other rules.
WITHIN_S = 120.0


@dataclass(frozen=True)
class Seen:
    """A fleet, and what watches it."""

    home: Home
    root: str
    headers: dict[str, str]
    prometheus: Prometheus
    alertmanager: str
    metrics_url: str
    collector: Collector

    def alerts(self) -> set[str]:
        """Names of those that have reached the Alertmanager."""
        with urllib.request.urlopen(f"{self.alertmanager}/api/v2/alerts", timeout=10) as answer:
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


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    """In a thread of its own: it has to answer while a test waits for a command."""
    loop, running = asyncio.new_event_loop(), collector()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(10)
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def seen(traces: Collector) -> Iterator[Seen]:
    for needed in ("prometheus", "alertmanager"):
        program(needed)
    home = Path(tempfile.mkdtemp(prefix="afx"))
    try:
        up = antefix(
            home,
            *("up", str(FLEET_FILE), "--port", "0", "--with-prometheus", "--json"),
            env=traces.environment,
        )
        assert up.returncode == 0, up.stderr
        started = json.loads(up.stdout)
        headers = {"authorization": f"Bearer {started['api_key']}"}
        seen = Seen(
            Home(home),
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
        await _lose_an_engine(seen, http)


async def _lose_an_engine(seen: Seen, http: aiohttp.ClientSession) -> None:
    """While it streams: what it has begun to answer is broken off."""
    body = {"model": OTHER_MODEL, "prompt": "Once", "max_tokens": 800, "ignore_eos": True}
    async with http.post("/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.status == 200
        await answer.content.readany()
        replica_id = answer.headers["x-antefix-replica"]
        _engine_of(seen, replica_id).kill()
        assert b'"engine_unavailable"' in await answer.content.read()


def _engine_of(seen: Seen, replica_id: str) -> psutil.Process:
    state = seen.home.state()
    assert state is not None
    owner = f"/engine/other/{replica_id}/owner"
    for process in processes.processes(state.run_id):
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
        "ignore_eos": True,
        "stream": True,
    }
    async with http.post("/v1/chat/completions", json=body, headers=headers) as answer:
        await answer.read()
        return answer.status


async def test_every_query_has_data(seen: Seen) -> None:
    asked = {name: query for name, query in queries().items() if not needs_gpus(query)}
    assert len(asked) > 150
    empty = dict(asked)

    def all_have_data() -> bool:
        for name, query in list(empty.items()):
            if seen.prometheus.query(query):
                del empty[name]
        return not empty

    try:
        await until(all_have_data, WITHIN_S)
    except TimeoutError:
        pytest.fail("no data:\n" + "\n".join(f"{name}: {query}" for name, query in empty.items()))


def test_every_metric_that_is_asked_for_exists(seen: Seen) -> None:
    names = seen.prometheus.names()
    wanted = {name for query in queries().values() for name in asked_for(query)}
    assert {name for name in wanted - names if not needs_gpus(name)} == set()


@pytest.mark.parametrize("was", ["antefix_ttft_seconds_bucket", "vllm:prompt_tokens_total"])
def test_a_metric_that_is_renamed_leaves_a_query_without_data(seen: Seen, was: str) -> None:
    asked = [query for query in queries().values() if was in asked_for(query)]
    assert asked
    for query in asked:
        assert seen.prometheus.query(query.replace(was, was.replace("_", "_renamed_", 1))) == []


async def test_the_failure_pages(seen: Seen) -> None:
    await until(lambda: "AntefixAvailabilityBudgetBurn" in seen.alerts(), WITHIN_S)


def test_all_rules_are_evaluated_without_an_error(seen: Seen) -> None:
    groups = seen.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 80
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}


def test_what_a_dead_engine_has_counted_is_still_told(seen: Seen) -> None:
    """It answered with 32 tokens before the stream that it died of."""
    assert seen.prometheus.query('sum(vllm:generation_tokens_total{pool="other"})')[0] > 32


def test_two_gateways_are_one_endpoint(seen: Seen) -> None:
    totals = set()
    for _ in range(6):  # whichever process answers
        with urllib.request.urlopen(seen.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        ended = [line for line in lines if line.startswith("antefix_requests_total{")]
        totals.add(sum(float(line.rpartition(" ")[2]) for line in ended))
    assert len(totals) == 1 and totals.pop() > BURST


async def test_a_trace_goes_from_the_client_through_placement_into_vllm(seen: Seen) -> None:
    def spans() -> dict[str, Told]:
        return {span.name: span for span in seen.collector.spans if span.trace_id == TRACE_ID}

    await until(lambda: len(spans()) == 4, WITHIN_S)
    told = spans()
    gateway, placement, engine = (told[name] for name in ("gateway", "placement", "engine"))
    assert gateway.parent_id == SPAN_ID
    assert placement.parent_id == engine.parent_id == gateway.span_id
    (of_vllm,) = [span for span in told.values() if span.service == "antefix-engine"]
    assert of_vllm.parent_id == engine.span_id
    counted = "gen_ai.usage.input_tokens"
    assert of_vllm.attributes["gen_ai.usage.prompt_tokens"] == engine.attributes[counted]
    assert not any(SECRET_PROMPT.encode() in raw for raw in seen.collector.raw)


def test_a_prompt_is_in_no_log_and_a_request_is(seen: Seen) -> None:
    done = antefix(seen.home.folder, "logs", "-n", "100000", "--json")
    assert done.returncode == 0, done.stderr
    assert SECRET_PROMPT not in done.stdout
    ended = [json.loads(line) for line in done.stdout.splitlines() if '"request_id"' in line]
    assert len(ended) > BURST
