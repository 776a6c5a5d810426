"""The pages that say what was measured and tested agree with those that have the figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.some import some

ROOT = Path(__file__).parent.parent
COMPARISON = (ROOT / "docs" / "comparison.md").read_text()
PEERS = (ROOT / "docs" / "benchmarks" / "peers.md").read_text()
TESTED = (ROOT / "docs" / "kubernetes" / "tested.md").read_text()
# The words for the cases of the benchmark, in docs/comparison.md.
CASES = {
    "multi_turn": "conversations through one gateway",
    "shared_system": "shared system prompts",
    "hot_prefix": "one hot prefix",
    "long_documents": "long documents",
    "short": "short prompts",
    "no_reuse": "no reuse",
    "agents": "agents",
    "cache_reset": "a cache reset",
    "router_restarted": "a router restart",
    "two_gateways": "two gateways",
    "four_gateways": "four gateways",
    "small_caches": "small caches",
}


def measured() -> dict[str, float]:
    """Of each case, Antefix's mean TTFT divided by the best other router's."""
    rows = re.findall(r"^\| `(\w+)_mean_ttft_by_best_other` +\| ([\d.]+) ", PEERS, re.M)
    return {case: float(ratio) for case, ratio in some(rows)}


def compared() -> list[tuple[float, float, list[str]]]:
    """Each row of docs/comparison.md: how much slower, in percent from and to, and the cases in
    words."""
    rows = re.findall(
        r"^\| (?:(\d+) to (\d+)% (faster|slower)|equally fast, within (\d+)%) \| (.*) \|$",
        COMPARISON,
        re.M,
    )
    found = []
    for least, most, speed, within, cases in some(rows):
        from_, to = (-float(within), float(within)) if within else (float(least), float(most))
        slower = (-to, -from_) if speed == "faster" else (from_, to)
        found.append((*slower, cases.split(", ")))
    return found


def test_the_comparison_names_each_measured_case_once() -> None:
    named = [case for *_, cases in compared() for case in cases]
    assert sorted(named) == sorted(CASES[case] for case in measured())


@pytest.mark.parametrize("case", CASES)
def test_the_comparison_states_the_outcome_of_each_case(case: str) -> None:
    ((least, most, _),) = (row for row in compared() if CASES[case] in row[2])
    percent = 100 * (measured()[case] - 1)
    assert least <= round(percent) <= most


def test_the_comparison_names_the_routers_that_were_measured() -> None:
    said = re.search(r"\]\(benchmarks/peers.md\) compares Antefix with (.*?)\.\s", COMPARISON, re.S)
    assert said
    table, *_ = re.findall(r"^\| +\| `round_robin`.*$", PEERS, re.M)
    products = {"vllm-router": "vllm_router", "smg": "smg", "LiteLLM": "litellm"}
    products |= {"Ray Serve LLM": "ray_llm", "llm-d": "llm_d", "Dynamo": "dynamo"}
    for product, router in products.items():
        assert (product in said[1]) == (f"`{router}`" in table), product


def test_a_feature_that_ran_on_kubernetes_is_not_described_as_untested() -> None:
    assert "rollback of a canary under load" in TESTED
    assert "untried" not in COMPARISON
    assert re.search(r"\[canaries\].{,60}\(kubernetes/tested.md", COMPARISON, re.S)


@pytest.mark.parametrize("page", ["CHANGELOG.md", "README.md", "docs/comparison.md"])
def test_a_page_states_how_long_the_tests_on_a_gpu_took(page: str) -> None:
    assert "15 minutes" in TESTED and "on one H100" in TESTED.replace("\n", " ")
    text = " ".join((ROOT / page).read_text().split())
    assert "half an hour" in text and "15 minutes" not in text


def test_the_page_on_grafana_says_which_client_the_commands_use() -> None:
    page = " ".join((ROOT / "docs" / "grafana.md").read_text().split())
    assert "`grafana-client`, the maintained fork of `grafana-api`" in page
    assert "grafana-client" in (ROOT / "requirements" / "operator.in").read_text()
