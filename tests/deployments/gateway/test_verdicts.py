"""A decision about a request has one name, wherever it is read; real gateway."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common.verdicts import VERDICTS, VerdictKind
from deployments.gateway import page
from deployments.gateway.record import request_log
from tests.deployments.gateway.admitting import BATCH, FREE, FULL, SLO, recorded_explanations
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.waiting import until

ONLY_HERE = {"x-antefix-overflow": "never"}
LOG = request_log.logger.name
# verdict -> prompt tokens that the engine has queued, and the request's headers
CASES: dict[VerdictKind, tuple[int, dict[str, str]]] = {
    "admitted": (FREE, {}),
    "queued": (FULL, BATCH | ONLY_HERE),
    "overflowed": (FULL, {}),
    "rejected": (FULL, ONLY_HERE),
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r0")


@pytest.fixture
async def front(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Front]:
    caplog.set_level(logging.INFO, LOG)
    overflow = {"to": "small", "enter": 1.0, "leave": 0.5, "max_share": 0.5}
    pool = {"slo": SLO, "batch_queue": 2, "overflow": overflow}
    async with gateway_before(engine, small=FakeEngine("r9", model="tiny"), pool=pool) as front:
        yield front


def logged(caplog: pytest.LogCaptureFixture) -> list[Any]:
    lines = [vars(record) for record in caplog.records if record.name == LOG]
    return [line["facts"]["verdict"] for line in lines]


@pytest.mark.parametrize("verdict", VERDICTS)
async def test_explanation_log_metric_and_header_have_the_same_name(
    front: Front, engine: FakeEngine, caplog: pytest.LogCaptureFixture, verdict: VerdictKind
) -> None:
    queue, headers = CASES[verdict]
    front.sees_queues({engine: queue})
    with recorded_explanations(front) as explanations:
        asked = asyncio.ensure_future(front.post(headers=headers))
        if verdict == "queued":
            await until(lambda: len(front.pool.scheduler.admission.queue) == 1)
            asked.cancel()  # it has no header, because its client leaves the queue
        else:
            answer = await asked
            await answer.read()
            in_header = answer.headers.get("x-antefix-admission")
            assert in_header == (None if verdict == "rejected" else verdict)
        await until(lambda: explanations and logged(caplog))
    (explanation,) = explanations
    assert [explanation["admission"]["verdict"]] == logged(caplog) == [verdict]
    priority = headers.get("x-antefix-priority", "interactive")
    metrics = await front.metrics()
    assert metrics["antefix_admissions_total", priority, verdict] == 1


async def test_a_queued_request_is_admitted_when_its_turn_comes(
    front: Front, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    front.sees_queues({engine: FULL})
    with recorded_explanations(front) as explanations:
        asked = asyncio.ensure_future(front.post(headers=BATCH | ONLY_HERE))
        await until(lambda: len(front.pool.scheduler.admission.queue) == 1)
        front.sees_queues({engine: FREE})
        answer = await asked
        await answer.read()
        await until(lambda: explanations and logged(caplog))
    assert answer.headers["x-antefix-admission"] == "admitted"
    assert explanations[0]["admission"]["verdict"] == "admitted"
    assert logged(caplog) == ["admitted"]


def test_the_web_ui_knows_every_verdict() -> None:
    text = (Path(page.__file__).parent / "explanation.js").read_text()
    (known,) = re.findall(r"export const VERDICTS = \{(.*?)\}", text)
    assert set(re.findall(r"(\w+):", known)) == set(VERDICTS)
