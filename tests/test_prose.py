"""What people read is plain English: the rules of docs/vale, over every page."""

from __future__ import annotations

import pytest

from tests.prose import ROOT, RULES, UNREAD_FILES, UNREAD_TEXTS, alerts, files
from tests.some import some

PAGES = files(
    *("*.md", ".github/**/*.md", "docs/**/*.md", "docs/llms.txt", "benchmarks/**/*.md"),
    *("helm/**/*.md", "k8s/**/*.md"),
)


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in some(PAGES)])
def test_a_page_is_plain_english(page: str) -> None:
    assert not alerts((ROOT / page).read_text())


@pytest.mark.parametrize("pattern", UNREAD_FILES)
def test_a_file_that_is_not_read_exists_and_has_a_reason(pattern: str) -> None:
    assert any(ROOT.glob(pattern.replace("*.md", "**/*.md"))) and UNREAD_FILES[pattern]


def test_every_page_in_docs_is_checked_without_being_listed() -> None:
    read = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"docs/adapters.md", "docs/runbooks/AntefixQueueDeep.md", "README.md"} <= read
    assert not {page for page in read if page.startswith("benchmarks/")}
    assert all(UNREAD_TEXTS.values())


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
        ("An Ingress is a way in.", "PrivateWords"),
        ("The test took, in all 206 s.", "Words"),
        ("The default behaviour is safe.", "American"),
        ("GPU utilisation is low.", "American"),
        (f"A sentence {'of many words ' * 9}.", "SentenceLength"),
    ],
)
def test_each_rule_finds_its_examples(text: str, rule: str) -> None:
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
        "In all cases, an exercise promises a precise premise.",
    ],
)
def test_no_rule_flags_a_standard_term(text: str) -> None:
    assert not alerts(text)


def test_code_and_the_targets_of_links_are_not_read() -> None:
    text = "Run `make drills`, or see [chaos tests](drills.md).\n\n```sh\nnobody tells\n```\n"
    assert not alerts(text)


def test_every_rule_has_an_example_in_this_test() -> None:
    assert {*some(RULES)} == {
        *("HeadlessClauses", "Machines", "MeetAnSlo", "Persons", "Verbs", "Words"),
        *("PrivateWords", "SentenceLength", "Inversion", "Fragments", "American"),
    }
