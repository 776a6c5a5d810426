"""What people read is plain English: the rules of docs/vale, for those who have no Vale.

A rule is a file in Vale's format, of the kinds `existence`, `substitution` and `occurrence`. Code,
link targets, anchors of former headings, comments and what tables separate are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.some import some

ROOT = Path(__file__).parent.parent
RULES = {
    file.stem: yaml.safe_load(file.read_text())
    for file in sorted((ROOT / "docs" / "vale" / "Antefix").glob("*.yml"))
}
# Rewritten so far. A page that is listed stays so; a new page is listed at once.
PAGES = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/README.md",
    "docs/admission.md",
    "docs/api.md",
    "docs/architecture.md",
    "docs/autoscaling.md",
    "docs/bench.md",
    "docs/budgets.md",
    "docs/cli.md",
    "docs/clients.md",
    "docs/comparison.md",
    "docs/drills.md",
    "docs/fleet-file.md",
    "docs/glossary.md",
    "docs/gpu-nodes.md",
    "docs/grafana.md",
    "docs/keys.md",
    "docs/laptop.md",
    "docs/logs-and-traces.md",
    "docs/metrics.md",
    "docs/models.md",
    "docs/monitoring.md",
    "docs/nginx.md",
    "docs/page.md",
    "docs/planning.md",
    "docs/preflight.md",
    "docs/profiling.md",
    "docs/resuming.md",
    "docs/routing.md",
    "docs/security.md",
    "docs/slo.md",
    "docs/speculation.md",
    "docs/style.md",
    "docs/troubleshooting.md",
    "docs/upgrading.md",
    "docs/weights.md",
    "docs/benchmarks/README.md",
    "docs/benchmarks/backtest.md",
    "docs/benchmarks/client.md",
    "docs/benchmarks/cold-starts.md",
    "docs/benchmarks/drills.md",
    "docs/benchmarks/fairness.md",
    "docs/benchmarks/kinds.md",
    "docs/benchmarks/long-prompts.md",
    "docs/benchmarks/observability.md",
    "docs/benchmarks/overhead.md",
    "docs/benchmarks/overload.md",
    "docs/benchmarks/peers.md",
    "docs/benchmarks/prediction.md",
    "docs/benchmarks/prefix-index.md",
    "docs/benchmarks/routing.md",
    "docs/benchmarks/scale.md",
    "docs/benchmarks/simulator.md",
    "docs/benchmarks/spike.md",
    "docs/benchmarks/startup.md",
    "docs/benchmarks/weights.md",
    "docs/kubernetes/README.md",
    "docs/kubernetes/a100-clusters.md",
    "docs/kubernetes/accept.md",
    "docs/kubernetes/gitops.md",
    "docs/kubernetes/gpu-image.md",
    "docs/kubernetes/install.md",
    "docs/kubernetes/keys.md",
    "docs/kubernetes/platforms.md",
    "docs/kubernetes/production.md",
    "docs/kubernetes/quickstart.md",
    "docs/kubernetes/troubleshoot.md",
    "docs/kubernetes/size.md",
    "docs/kubernetes/tested.md",
    "docs/kubernetes/uninstall.md",
    "docs/kubernetes/upgrade.md",
    "docs/kubernetes/warm-nodes.md",
    "helm/antefix/README.md",
)
RUNBOOKS = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs/runbooks").glob("*.md"))]


def prose(text: str) -> str:
    """The words of a Markdown page; each code span is one word."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r'<!--.*?-->|<a id="[^"]*"></a>', "", text, flags=re.S)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text, flags=re.S)
    return re.sub(r"[*_]{1,2}([^*_\n]+)[*_]{1,2}", r"\1", text)


def sentences(text: str) -> Iterator[str]:
    """Of paragraphs, items of lists, headings and the cells of tables."""
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.|#+) |\||\n(?=\|)", prose(text), flags=re.M):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(block.split()))


def tokens_of(rule: dict[str, Any]) -> list[str]:
    return list(rule.get("tokens") or rule["swap"])


def alerts(text: str) -> list[str]:
    """Each with the rule's name."""
    found = []
    for name, rule in RULES.items():
        flags = re.I if rule.get("ignorecase") else 0
        if rule["extends"] == "occurrence":
            word = re.compile(rule["token"])
            found += [
                f"{name}: {sentence}"
                for sentence in sentences(text)
                if len(word.findall(sentence)) > rule["max"]
            ]
            continue
        any_of = re.compile(rf"\b(?:{'|'.join(tokens_of(rule))})(?!\w)", flags)
        found += [
            f"{name}: {match[0]!r} in {sentence}"
            for sentence in sentences(text)
            for match in any_of.finditer(sentence)
        ]
    return found


@pytest.mark.parametrize("page", [*PAGES, *some(RUNBOOKS)])
def test_a_page_is_plain_english(page: str) -> None:
    assert not alerts((ROOT / page).read_text())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Whoever reads Redis cannot test a prompt.", "HeadlessClauses"),
        ("Redis is not believed.", "Machines"),
        ("A request that holds its SLO goes first.", "MeetAnSlo"),
        ("Nobody gets in.", "Persons"),
        ("The stream was broken off.", "Verbs"),
        ("It goes there, or else it waits.", "Words"),
        ("The drills passed.", "PrivateWords"),
        ("Up it goes in one step.", "Inversion"),
        ("Only there has it been tried.", "Inversion"),
        ("Not left to chance is the number of requests.", "Inversion"),
        ("Behind it stands a proxy.", "Inversion"),
        ("Of the kubeconfig.", "Fragments"),
        ("Of new conversations each pool gets a share.", "Fragments"),
        ("Of vLLM, for both; repeat it.", "Fragments"),
        ("Whose.", "Fragments"),
        ("Requests are placed by load alone.", "Words"),
        ("It is cheap, for they share the price.", "Words"),
        ("It waits, for the next gateway is busy.", "Words"),
        ("All are there.", "Verbs"),
        ("Another may come.", "Verbs"),
        ("The stream comes back.", "Verbs"),
        ("The placeholder sleeps.", "Machines"),
        ("The house has a roof.", "PrivateWords"),
        ("Each room has a door.", "PrivateWords"),
        ("The laws of the code.", "PrivateWords"),
        ("A short soak.", "PrivateWords"),
        ("The engine ends the hold.", "PrivateWords"),
        (f"A sentence {'of many words ' * 9}.", "SentenceLength"),
    ],
)
def test_each_rule_finds_what_it_is_for(text: str, rule: str) -> None:
    assert [alert.partition(":")[0] for alert in alerts(text)] == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "A warm replica sleeps after 30 s, and its threads sleep too.",
        "By Little's law, each replica finishes its arrivals.",
        "A soak test ran for an hour, and a node has room for it.",
        "Is there room, and how soon is there more?",
        "Engines hold KV blocks. `wait` comes first, and prompts come from a trace.",
        "Of 60 chaos tests in 3 runs, 60 ended as expected.",
        "On one machine it listens on loopback, for an address of the host.",
        "Not every request is a chat. Only operators may profile an engine.",
        "So this is an estimate, for these reasons.",
    ],
)
def test_a_term_of_the_field_is_no_habit(text: str) -> None:
    assert not alerts(text)


def test_code_and_the_targets_of_links_are_not_read() -> None:
    text = "Run `make drills`, or see [chaos tests](drills.md).\n\n```sh\nnobody tells\n```\n"
    assert not alerts(text)


def test_the_rules_are_those_that_this_test_tries() -> None:
    assert {*some(RULES)} == {
        *("HeadlessClauses", "Machines", "MeetAnSlo", "Persons", "Verbs", "Words"),
        *("PrivateWords", "SentenceLength", "Inversion", "Fragments"),
    }
