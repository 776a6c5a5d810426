"""How a chaos test is judged, and how its clients record the end of each of their requests."""

import json
from dataclasses import replace

import pytest

from benchmarks.drills.traffic import Traffic
from benchmarks.drills.verdict import TOLD_WITHIN_S, WHOLE_WITHIN_S, Injury, Judgement, judge
from benchmarks.harness.load.client_answers import ClientAnswer
from cli.gateway.stream_client import Endpoint
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front, gateway_before

FAULT = Injury(10.0, 20.0, frozenset({"hit"}))
OF_A_GATEWAY = Injury(10.0, 20.0, gateway=True)
WHOLE = ClientAnswer(9.0, 11.0, "hit")
NOTHING: dict[str, int] = {"slots": 0}


def answer_with_code(code: str, **more: object) -> ClientAnswer:
    return replace(ClientAnswer(9.0, 11.0, "hit", code), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", [FAULT, OF_A_GATEWAY])
@pytest.mark.parametrize(
    "outcome",
    [
        WHOLE,
        answer_with_code("engine_unavailable"),
        answer_with_code("engine_unavailable", began=19.0, ended=20.0 + TOLD_WITHIN_S - 1.1),
        ClientAnswer(21.0, 22.0, "another"),
    ],
)
def test_an_answer_that_resumes_or_fails_in_time_is_correct(
    fault: Injury, outcome: ClientAnswer
) -> None:
    verdict = judge("one", [outcome], fault, 21.0, NOTHING)
    assert verdict.is_right, verdict.wrong
    assert verdict.row().endswith("as it should be")
    json.dumps(verdict.figures())


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        (FAULT, answer_with_code("engine_unavailable", replica="another"), "though not hit"),
        (FAULT, answer_with_code("engine_unavailable", began=20.5, ended=21.0), "though not hit"),
        (FAULT, answer_with_code("engine_unavailable", replica=""), "though not hit"),
        (FAULT, answer_with_code("no Antefix error"), "got no Antefix error"),
        (FAULT, answer_with_code("cut (ClientPayloadError)"), "got no Antefix error"),
        (OF_A_GATEWAY, answer_with_code("hung", ended=160.0), "got no Antefix error"),
        (
            FAULT,
            answer_with_code("engine_unavailable", ended=10.1 + TOLD_WITHIN_S),
            "only after up to 5.1 s",
        ),
    ],
)
def test_a_failure_in_another_way_is_wrong(
    fault: Injury, outcome: ClientAnswer, words: str
) -> None:
    assert words in "; ".join(judge("one", [WHOLE, outcome], fault, 21.0, NOTHING).wrong)


def test_an_answer_interrupted_by_a_dead_gateway_is_correct() -> None:
    assert judge("one", [answer_with_code("cut (X)")], OF_A_GATEWAY, 21.0, NOTHING).is_right


def test_a_fleet_that_recovers_too_late_or_leaks_slots_is_wrong() -> None:
    late = judge("one", [WHOLE], FAULT, 20.1 + WHOLE_WITHIN_S, NOTHING)
    assert "only 30.1 s after" in late.wrong[0]
    assert "slots" in judge("one", [WHOLE], FAULT, 21.0, {"slots": 1}).wrong[0]
    assert judge("one", [], FAULT, 21.0, NOTHING).wrong == ["nothing was asked"]


def test_a_planned_fault_may_not_fail_a_request() -> None:
    planned = replace(FAULT, planned=True)
    assert judge("one", [WHOLE], planned, 21.0, NOTHING).is_right
    (wrong,) = judge(
        "one", [WHOLE, answer_with_code("engine_unavailable")], planned, 21.0, NOTHING
    ).wrong
    assert wrong == "failed though it was planned: 1 engine_unavailable"


def test_a_skipped_chaos_test_is_reported_and_is_not_wrong() -> None:
    skipped = Judgement("one", skipped="it takes root: run it as root")
    assert skipped.is_right and skipped.row().endswith("skipped: it takes root: run it as root")
    assert skipped.figures() == {"skipped": "it takes root: run it as root"}
    assert not Judgement("one", ["no replica came back"]).is_right


def traffic(front: Front) -> Traffic:
    return Traffic(Endpoint("gateway", front.url, front.headers), MODEL)


async def test_clients_record_whole_answers_with_their_replica() -> None:
    engine = FakeEngine("r0")
    async with gateway_before(engine) as front:
        asking = traffic(front)
        async with asking.clients(2):
            for _ in range(3):
                await asking.ask()
    assert len(asking.outcomes) >= 5
    assert {(one.code, one.replica) for one in asking.outcomes} == {(None, "r0")}
    assert all(one.ended > one.began for one in asking.outcomes)
    assert any(one.came_at for one in asking.outcomes)


async def test_clients_record_how_an_answer_was_interrupted() -> None:
    engine = FakeEngine("r0")
    engine.dies_after, engine.offers_resumable = 3, False
    async with gateway_before(engine) as front:
        asking = traffic(front)
        asked = [await asking.ask() for _ in range(4)]
    # whole answers are tried again elsewhere, of which there is nothing
    assert {one.code for one in asked} == {"engine_unavailable"}
    assert [one.replica for one in asked if one.came_at] == ["r0", "r0"]


async def test_clients_record_a_refused_connection() -> None:
    (one,) = [await Traffic(Endpoint("gateway", "http://127.0.0.1:1"), MODEL).ask()]
    assert one.code == "cut (ClientConnectorError)"
