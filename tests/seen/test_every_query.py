"""Every query of every dashboard, rule and alert has data on a living fleet with a real
Prometheus.

Each query is put to the Prometheus that `antefix up --with-prometheus` started alongside the
fleet.
"""

from __future__ import annotations

import json
import urllib.request

import pytest

from tests.fakes.collector import Told
from tests.prometheus import asked_for, needs_gpus, needs_tiers, queries
from tests.seen.conftest import BURST, SECRET_PROMPT, SPAN_ID, TRACE_ID, Seen, antefix
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

# Prometheus reads every 5 s and evaluates every 15 s; some rules are of other rules.
WITHIN_S = 120.0
# To ask again takes a core from the processes that the query is about.
EVERY_S = 1.0


def is_elsewhere(query: str) -> bool:
    """Whether tests of GPUs or of tiers ask it."""
    return needs_gpus(query) or needs_tiers(query)


async def test_every_query_has_data(seen: Seen) -> None:
    asked = {name: query for name, query in queries().items() if not is_elsewhere(query)}
    assert len(asked) > 150
    empty = dict(asked)

    def all_have_data() -> bool:
        for name, query in list(empty.items()):
            if seen.prometheus.query(query):
                del empty[name]
        return not empty

    try:
        await until(all_have_data, WITHIN_S, every_s=EVERY_S)
    except TimeoutError:
        pytest.fail("no data:\n" + "\n".join(f"{name}: {query}" for name, query in empty.items()))


def test_every_metric_that_is_asked_for_exists(seen: Seen) -> None:
    names = seen.prometheus.names()
    wanted = {name for query in queries().values() for name in asked_for(query)}
    assert {name for name in wanted - names if not is_elsewhere(name)} == set()


@pytest.mark.parametrize("was", ["antefix_ttft_seconds_bucket", "vllm:prompt_tokens_total"])
def test_a_metric_that_is_renamed_leaves_a_query_without_data(seen: Seen, was: str) -> None:
    asked = [query for query in queries().values() if was in asked_for(query)]
    assert asked
    for query in asked:
        assert seen.prometheus.query(query.replace(was, was.replace("_", "_renamed_", 1))) == []


def test_all_rules_are_evaluated_without_an_error(seen: Seen) -> None:
    groups = seen.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 80
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}


def test_counters_of_a_dead_engine_are_still_exported(seen: Seen) -> None:
    """It answered with 32 tokens before the stream that it died of."""
    assert seen.prometheus.query('sum(vllm:generation_tokens_total{pool="other"})')[0] > 32


def test_two_gateways_are_one_endpoint(seen: Seen) -> None:
    totals = set()
    for _ in range(6):  # whichever process answers
        with urllib.request.urlopen(seen.metrics_url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        ended = [line for line in lines if line.startswith("antefix_requests_total{")]
        totals.add(sum(float(line.rpartition(" ")[2]) for line in ended))
    assert len(totals) == 1 and totals.pop() > BURST


async def test_a_trace_goes_from_the_client_through_placement_into_vllm(seen: Seen) -> None:
    def spans() -> dict[str, Told]:
        return {span.name: span for span in seen.collector.spans if span.trace_id == TRACE_ID}

    await until(lambda: len(spans()) == 4, WITHIN_S, every_s=EVERY_S)
    told = spans()
    gateway, placement, engine = (told[name] for name in ("gateway", "placement", "engine"))
    assert gateway.parent_id == SPAN_ID
    assert placement.parent_id == engine.parent_id == gateway.span_id
    (of_vllm,) = [span for span in told.values() if span.service == "antefix-engine"]
    assert of_vllm.parent_id == engine.span_id
    counted = "gen_ai.usage.input_tokens"
    assert of_vllm.attributes["gen_ai.usage.prompt_tokens"] == engine.attributes[counted]
    assert not any(SECRET_PROMPT.encode() in raw for raw in seen.collector.raw)


def test_logs_contain_requests_but_no_prompts(seen: Seen) -> None:
    done = antefix(seen.home.folder, "logs", "--tail", "100000", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert SECRET_PROMPT not in done.stdout
    ended = [json.loads(line) for line in done.stdout.splitlines() if '"request_id"' in line]
    assert len(ended) > BURST


async def test_lost_availability_pages_the_operators(seen: Seen) -> None:
    """The last: it takes the longest to be reported."""
    await until(lambda: "AntefixAvailabilityBudgetBurn" in seen.alerts(), WITHIN_S, every_s=EVERY_S)
