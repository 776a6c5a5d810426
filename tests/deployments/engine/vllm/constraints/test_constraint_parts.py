"""What a constraint hides behind an unlikely token is a part that is followed separately."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.engine.vllm.constraints.constraint_bounds import excess_of
from deployments.engine.vllm.constraints.constraint_inner import (
    MOST_INNER,
    inner_grammars,
    inner_patterns,
)
from deployments.engine.vllm.constraints.constraint_parts import parts_of
from tests.deployments.engine.vllm.known_constraints import HIDDEN, ORDINARY

PATTERNS = [
    r"^\+?[0-9 ()-]{7,20}$",
    "^[A-Z]{2}-[0-9]{4}$",
    "^[a-z0-9]+(-[a-z0-9]+)*$",
    "^#([A-Fa-f0-9]{6}|[A-Fa-f0-9]{3})$",
    r"^([01]\d|2[0-3]):[0-5]\d$",
    r"^[\w.+-]+@[\w-]+\.[\w.-]+$",
    r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$",
    r"^(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}$",
    "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    r"https?://[\w.-]+(/[\w./-]*)?(\?\w+=\w+(&\w+=\w+)*)?",
    "(yes|no|maybe)",
    r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
    r"v?\d+\.\d+\.\d+(-[\w.]+)?",
    "[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){3,7}",
    r"\$\d{1,3}(,\d{3})*(\.\d{2})?",
    ".{1,500}",
    "(red|green|blue)(, (red|green|blue))*",
    r"Answer: [ABCD]\nReason: .+",
    r"\[\d+(, \d+)*\]",
    r"<think>.*</think>\s*\d+",
]


def first_of(part: Any) -> str:
    """The text of a part: a pattern, the first rule of a grammar, or a tag."""
    if isinstance(part, dict):
        return str(part.get("pattern"))
    return str(part).split("\n")[0] if "\n" in part else str(part)


@pytest.mark.parametrize("name", HIDDEN)
def test_text_behind_an_unlikely_token_is_a_separate_part(name: str) -> None:
    kind, constraint, hidden = HIDDEN[name]
    assert hidden in [first_of(part) for _, part in parts_of(kind, constraint)]
    assert excess_of(kind, constraint) is None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_ordinary_pattern_has_few_parts(pattern: str) -> None:
    assert len(inner_patterns(pattern)) <= MOST_INNER / 32
    assert excess_of("regex", pattern) is None


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_schema_has_few_parts(name: str) -> None:
    assert len(parts_of("json", ORDINARY[name])) <= MOST_INNER / 16


def test_a_rule_named_as_the_first_one_in_a_text_keeps_its_text() -> None:
    grammar = 'root ::= [b-z]+ | "root" root_2\nroot_2 ::= "a" root root_2 root\n'
    assert (
        'root ::= root_2\naaaa ::= [b-z]+ | "root" root_2\nroot_2 ::= "a" aaaa root_2 aaaa\n'
        in inner_grammars(grammar)
    )


@pytest.mark.parametrize("text", ["(", "[", "a|", "a*", "(a*", "{ ", "{" + " " * 999, "\\", "(?:"])
@pytest.mark.parametrize("kind", ["regex", "grammar"])
def test_a_long_unreadable_pattern_takes_linear_work(kind: str, text: str) -> None:
    """Quadratic work would take hours, and end at the test's time limit."""
    pattern = ("root ::= " if kind == "grammar" else "") + text * (60_000 // len(text))
    assert len(parts_of(kind, pattern)) <= MOST_INNER + 1


def test_more_parts_than_a_trial_follows_are_refused() -> None:
    groups = "".join(f"(a{i}+b+)*" for i in range(300))
    excess = excess_of("regex", groups)
    assert excess is not None
    assert "fewer groups" in excess.remedy
    tag: dict[str, Any] = {"type": "const_string", "value": "a"}
    for _ in range(300):
        tag = {"type": "optional", "content": tag}
    assert excess_of("structural_tag", json.dumps({"format": tag})) is not None


def test_a_grammar_of_a_hundred_recursive_rules_is_within_the_bounds() -> None:
    rules = (
        f'r{i} ::= "k{i}(" (r{(i + 1) % 100} ("," r{(i + 3) % 100})*)? ")" | '
        f'"[" (r{(3 * i + 1) % 100} ("," r{(i + 7) % 100})*)? "]" | [a-z]+\n'
        for i in range(100)
    )
    grammar = f"root ::= r0 | r50\n{''.join(rules)}"
    assert excess_of("grammar", grammar) is None
    assert len(inner_grammars(grammar)) == MOST_INNER


def test_the_worst_of_many_parts_of_a_grammar_come_first() -> None:
    rules = "".join(f'r{i} ::= "{i}" r{i} | "x"\n' for i in range(400))
    grammar = f'root ::= r0 | "7" (("a"* "b"*){{9}} "c"*){{9}}\n{rules}'
    assert "{9}" in inner_grammars(grammar)[0].splitlines()[0]
