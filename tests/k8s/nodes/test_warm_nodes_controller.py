"""The controller of warm nodes, against the Kubernetes API and gateways over HTTP."""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from kubernetes.client.exceptions import ApiException

from deployments.gateway.intake.keys_file import plain_keys
from deployments.gateway.pool.gateway_pool import GatewayPool
from k8s.nodes.warm_nodes_controller import Controller, JsonFormatter, first_key, run
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before
from tests.k8s.api import Refused
from tests.k8s.warm_fleet import GPU, GROWING, NAMESPACE, Fleet, placeholders_of, warm_fleet
from tests.waiting import until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with warm_fleet(tmp_path) as fleet:
        yield fleet


@pytest.fixture
def controller(fleet: Fleet) -> Controller:
    controller, leadership = fleet.controller()
    assert leadership.renew()
    return controller


def test_placeholders_follow_the_forecast_of_a_gateway(
    fleet: Fleet, controller: Controller
) -> None:
    controller.step()
    assert fleet.placeholders == 0
    fleet.gateway.decided = GROWING
    controller.step()
    assert fleet.placeholders == 2


def test_an_unchanged_number_of_placeholders_is_not_written(
    fleet: Fleet, controller: Controller
) -> None:
    fleet.gateway.decided = GROWING
    controller.step()
    controller.step()
    assert len(fleet.writes) == 1


def test_pods_that_start_for_the_growth_need_no_placeholders(
    fleet: Fleet, controller: Controller
) -> None:
    fleet.gateway.decided = GROWING
    fleet.runs(1, phase="Pending")
    controller.step()
    assert fleet.placeholders == 1


def test_finished_and_terminating_pods_do_not_count(fleet: Fleet, controller: Controller) -> None:
    fleet.gateway.decided = GROWING
    fleet.runs(1, phase="Failed")
    fleet.runs(1, ending=True)
    controller.step()
    assert fleet.placeholders == 2


def test_an_engine_that_waits_for_a_gpu_removes_placeholders(
    fleet: Fleet, controller: Controller
) -> None:
    fleet.gateway.decided = GROWING
    controller.step()
    assert fleet.placeholders == 2
    fleet.runs(1, phase="Pending", waits_for=f"Insufficient {GPU}")
    controller.step()
    assert fleet.placeholders == 0


def test_an_engine_that_waits_for_another_reason_keeps_placeholders(
    fleet: Fleet, controller: Controller
) -> None:
    fleet.gateway.decided = GROWING
    fleet.runs(1, phase="Pending", waits_for="node(s) had untolerated taint")
    controller.step()
    assert fleet.placeholders == 1


def test_the_fleets_gpu_budget_counts_the_gpus_of_engines(fleet: Fleet) -> None:
    fleet.settings = replace(fleet.settings, gpu_budget=12.0)
    fleet.gateway.decided = GROWING
    controller, leadership = fleet.controller()
    assert leadership.renew()
    controller.step()
    assert fleet.placeholders == 1


@pytest.mark.parametrize("trouble", ["no decision", "garbled", "wrong key", "no key", "away"])
def test_placeholders_stay_while_no_gateway_reports_a_forecast(
    fleet: Fleet, controller: Controller, trouble: str
) -> None:
    fleet.gateway.decided = GROWING
    controller.step()
    match trouble:
        case "no decision":
            fleet.gateway.decided = None
        case "garbled":
            fleet.gateway.garbled = True
        case "wrong key":
            fleet.gateway.key = "another"
        case "no key":
            fleet.keys.unlink()
        case "away":
            fleet.gateway.server.shutdown()
            fleet.gateway.server.server_close()
    controller.step()
    assert fleet.placeholders == 2


def test_a_rotated_key_is_read_again(fleet: Fleet, controller: Controller) -> None:
    fleet.gateway.decided, fleet.gateway.key = GROWING, "new"
    fleet.keys.write_text("default=new")
    controller.step()
    assert fleet.placeholders == 2


def test_a_key_that_cannot_be_sent_is_not_logged(
    fleet: Fleet, controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.keys.write_text("default=sk-\x7fsecret\u20ac")
    controller.step()
    assert "contains no usable key" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "text",
    ["a=1\nb=2\n", "a=1,b=2", "\n a = k=v \n", "# old=0\na=1", "#a=0,b=2", "a=sha256:0,b=2", ""],
)
def test_gateways_accept_the_first_key_of_the_file(text: str) -> None:
    assert first_key(text) == next(iter(plain_keys(text)), "")


def conflicts(fleet: Fleet, times: int) -> None:
    """The next writes, as an API server answers that races with another one."""
    left = iter(range(times))

    def refuse() -> None:
        if next(left, None) is not None:
            raise Refused(409, "Conflict", "the object has been modified")

    fleet.api.before_write = refuse


def test_a_conflict_is_tried_again(fleet: Fleet, controller: Controller) -> None:
    fleet.gateway.decided = GROWING
    conflicts(fleet, 2)
    controller.step()
    assert fleet.placeholders == 2


def test_conflicts_without_end_are_left_for_the_next_time(
    fleet: Fleet, controller: Controller
) -> None:
    fleet.gateway.decided = GROWING
    conflicts(fleet, 10)
    with pytest.raises(ApiException, match="Conflict"):
        controller.step()
    assert len(fleet.writes) == 3


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    stop = threading.Event()
    task = asyncio.create_task(asyncio.to_thread(run, *fleet.controller(), stop, 0.02))
    try:
        yield
    finally:
        stop.set()
        await task


async def test_the_controller_resumes_when_kubernetes_is_available_again(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.gateway.decided = GROWING
    fleet.api.away = True
    async with running(fleet):
        await until(lambda: "failed to request Lease" in caplog.text)
        fleet.api.away = False
        await until(lambda: fleet.placeholders == 2)


async def test_a_missing_permission_is_logged_and_the_request_is_retried(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.api.forbid("list", "pods")
    async with running(fleet):
        await until(lambda: caplog.text.count("pods is forbidden") >= 2)


async def test_the_controller_reads_the_status_of_a_real_gateway(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # which it reads again each turn
    always = property(lambda pool: GROWING, lambda pool, read: None)
    monkeypatch.setattr(GatewayPool, "decided", always, raising=False)
    async with gateway_before(FakeEngine()) as front:
        url = f"{front.url}/antefix/status"
        pool = replace(fleet.settings.pools[0], name="main")
        fleet.settings = replace(fleet.settings, status_url=url, pools=(pool,))
        fleet.api.add(placeholders_of("main"))
        controller, leadership = fleet.controller()
        assert leadership.renew()
        await asyncio.to_thread(controller.step)
    made = fleet.api.get("Deployment", "afx-antefix-placeholder-main", NAMESPACE)
    assert made["spec"]["replicas"] == 3  # 4 are expected, none exists; maxPerPool


IN_NO_CLUSTER = """
import kubernetes.config, os
from deployments.gateway.intake.keys_file import plain_keys
from k8s.nodes import warm_nodes_controller
def here(configuration): configuration.host = os.environ["API"]
kubernetes.config.load_incluster_config = here
warm_nodes_controller.main()
"""


async def test_the_controller_process_runs_until_it_is_signaled(fleet: Fleet) -> None:
    fleet.gateway.decided = GROWING
    told = {
        "API": fleet.api.url,
        "ANTEFIX_API_KEYS_FILE": str(fleet.keys),
        "ANTEFIX_WARM_NODES": msgspec.json.encode(fleet.settings).decode(),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", IN_NO_CLUSTER, env=os.environ | told, cwd=ROOT
    )
    try:
        await until(lambda: fleet.placeholders == 2, within_s=60)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_every_log_line_is_a_json_object() -> None:
    record = logging.LogRecord("antefix.x", logging.WARNING, "x", 1, 'a "%s"\n', ("b",), None)
    line = json.loads(JsonFormatter().format(record))
    assert line.pop("timestamp").endswith("+00:00")
    assert line == {
        "level": "WARNING",
        "logger": "antefix.x",
        "message": 'a "b"\n',
        "component": "warm-nodes",
    }
