"""How large a constraint may be, whatever its spelling."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from deployments.engine.vllm.constraints import constraint_bounds as bounds
from deployments.engine.vllm.constraints.constraint_bounds import excess_of
from deployments.engine.vllm.constraints.constraint_shapes import shape_of, simplified
from tests.any_constraint import JSON, PATTERNS, objects
from tests.deployments.engine.vllm.known_constraints import EARLY, FOLLOWED, ORDINARY
from tests.every_field.constraints import CHOICES, GRAMMARS, REGEXES, SCHEMAS

HUGE: dict[str, tuple[str, Any]] = {
    "many choices": ("choice", [str(i) for i in range(1001)]),
    "long choices": ("choice", ["x" * 1000] * 100),
    "one long choice": ("choice", ["x" * 65_537]),
    "choices of wide characters": ("choice", ["\U0001f600" * 20_000]),
    "long regex": ("regex", "a" * 65_537),
    "regex of many alternatives": ("regex", "|".join("ab" for _ in range(1001))),
    "repetition": ("regex", "a{1000000}"),
    "open repetition": ("regex", "a{1000000,}"),
    "spaced repetition": ("regex", "a{ 0 , 1000000 }"),
    "nested repetition": ("regex", "(a{1000}){1000}"),
    "repetition of a repetition": ("regex", "a{1000}{1000}"),
    "deeper nested repetition": ("regex", "(?:x(b|c{0,50}){0,50}){0,50}"),
    "repetition in a group left open": ("regex", "(((a{1000000}"),
    "long grammar": ("grammar", "root ::= " + '"a" ' * 20_000),
    "grammar of many alternatives": ("grammar", "root ::= " + " | ".join(['"a"'] * 1001)),
    "grammar's nested repetition": ("grammar", 'root ::= ("a"{1,1000}){1,1000}'),
    "Lark's repetition": ("grammar", "start: x ~ 1..1000000\nx: /a/"),
    "enum": ("json", {"enum": list(range(1001))}),
    "enum in text": ("json", json.dumps({"enum": list(range(1001))})),
    "enum of long strings": ("json", {"enum": ["x" * 1000] * 100}),
    "long const": ("json", {"const": "x" * 70_000}),
    "anyOf": ("json", {"anyOf": [{"const": i} for i in range(1001)]}),
    "array": ("json", {"type": "array", "maxItems": 10**9}),
    "array below": ("json", objects(1, type="array", minItems=10**6)),
    "array below a property with a keyword's name": (
        "json",
        {"properties": {"const": {"type": "array", "minItems": 10**6}}},
    ),
    "array in a definition": ("json", {"$defs": {"enum": {"minItems": 10**6}}}),
    "fractional bound": ("json", {"minItems": 1e9}),
    "maxLength": ("json", {"type": "string", "maxLength": 10**12}),
    "maxProperties": ("json", {"type": "object", "minProperties": 10**9}),
    "pattern": ("json", objects(3, type="string", pattern="(a{1000}){1000}")),
    "pattern of a name": ("json", {"patternProperties": {"a{1000000}": {}}}),
    "pattern of names": ("json", {"propertyNames": {"pattern": "a{1000000}"}}),
    "properties": ("json", objects(2001)),
    "long descriptions": ("json", json.dumps({"description": "x" * 2_000_000})),
    "text that is no JSON": ("json", "{" * 70_000),
    "tag with a schema": (
        "structural_tag",
        json.dumps({"structures": [{"begin": "<a>", "schema": {"maxItems": 10**9}}]}),
    ),
    "tag with a regex": (
        "structural_tag",
        json.dumps({"format": {"type": "regex", "pattern": "a{1000000}"}}),
    ),
    "tag with a grammar": (
        "structural_tag",
        json.dumps({"format": {"type": "grammar", "grammar": 'root ::= "a"{1000000}'}}),
    ),
    "tags": ("structural_tag", json.dumps({"format": {"tags": [{}] * 1001}})),
    "integer that cannot be printed": ("json", {"maxItems": 10**5000}),
}
SENSIBLE: dict[str, tuple[str, Any]] = {
    "yes or no": ("choice", ["yes", "no"]),
    "hundreds of choices": ("choice", [f"category {i}" for i in range(800)]),
    "200 properties with long descriptions": (
        "json",
        objects(200, type="string", maxLength=2000, description="What it says. " * 60),
    ),
    "enums of some hundreds": (
        "json",
        {"properties": {f"p{i}": {"enum": [f"v{n}" for n in range(300)]} for i in range(20)}},
    ),
    "property called maxItems": ("json", {"properties": {"maxItems": {"type": "integer"}}}),
    "instance with a keyword": ("json", {"const": {"maxItems": 10**9}}),
    "mail address": ("regex", r"[\w.+-]{1,64}@[\w-]{1,63}(\.[\w-]{1,63}){1,8}"),
    "braces that repeat nothing": ("regex", r"\{1000000\}[{1000000}]a{,b}"),
    "braces in a grammar's string": ("grammar", 'root ::= "a{1000000}" | "|||"'),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_constraint_is_refused_with_its_value_the_bound_and_a_remedy(name: str) -> None:
    excess = excess_of(*HUGE[name])
    assert excess is not None
    assert excess.value > excess.most
    assert f"at most {excess.most:,} is allowed" in str(excess)
    assert str(excess).endswith((".", "'."))
    assert excess.remedy


@pytest.mark.parametrize("name", SENSIBLE)
def test_sensible_constraints_are_within_the_bounds(name: str) -> None:
    assert excess_of(*SENSIBLE[name]) is None


@pytest.mark.parametrize(
    ("pattern", "repetitions"),
    [
        ("abc", 1),
        ("a{3}b{5}", 5),
        ("(a{3}b{2}){5}", 15),
        ("((a{10}){10}){10}", 1000),
        ("(a{10})(b{10})", 10),
        ("a{2,}", 2),
        ("a{0,7}", 7),
        (r"\(a{5}\){9}", 9),
        ("[a{5}]{7}", 7),
        ("[]a{5}]{7}", 7),
        ("[^]{5}]{7}", 7),
        ("a{0}", 1),
    ],
)
def test_repetitions_of_nested_groups_multiply(pattern: str, repetitions: int) -> None:
    assert shape_of(pattern).repetitions == repetitions


@given(
    st.sampled_from(["choice", "regex", "grammar", "json", "structural_tag", "json_object"]),
    JSON | PATTERNS | st.lists(st.text()) | JSON.map(json.dumps),
)
@example("regex", "[")
@example("regex", "\\")
@example("json", {"maxItems": float("nan")})
@example("json", {"maxItems": True, "enum": {}, "pattern": 5, "properties": [], "type": []})
@example("json", "[" * 100_000)
@example("choice", ["\ud800"])
def test_no_constraint_makes_the_bounds_raise(kind: str, constraint: Any) -> None:
    excess = excess_of(kind, constraint)
    assert excess is None or str(excess)


@given(PATTERNS)
def test_an_accepted_pattern_meets_the_bounds_of_a_full_parse(pattern: str) -> None:
    assume(excess_of("regex", pattern) is None)
    shape = shape_of(pattern)
    assert shape.repetitions <= bounds.MOST_REPETITIONS
    assert shape.alternatives <= bounds.MOST_ALTERNATIVES
    assert len(pattern.encode("utf-8", "surrogatepass")) <= bounds.MOST_BYTES


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_no_nesting_hides_a_repetition(a: int, b: int, c: int) -> None:
    pattern = f"(x(?:[a-z]{{{a}}}|y){{1,{b}}}z){{{c},}}"
    refused = excess_of("regex", pattern) is not None
    levels = sum(count > 1 for count in (a, b, c))
    most = bounds.MOST_NESTED_REPETITIONS if levels > 1 else bounds.MOST_REPETITIONS
    assert refused == (a * b * c > most)


@pytest.mark.parametrize("name", EARLY)
def test_a_shape_that_is_slow_to_follow_is_refused_before_a_trial(name: str) -> None:
    excess = excess_of(*EARLY[name])
    assert excess is not None
    assert excess.value > excess.most
    assert excess.remedy


@pytest.mark.parametrize("name", FOLLOWED)
def test_other_shapes_are_left_to_a_trial(name: str) -> None:
    assert excess_of(*FOLLOWED[name]) is None


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_schema_is_within_all_bounds(name: str) -> None:
    assert excess_of("json", ORDINARY[name]) is None


JSON_GRAMMAR = r"""
root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair ::= string ":" ws value
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\] | "\\" ["\\/bfnrt])* "\"" ws
number ::= "-"? [0-9]+ ("." [0-9]+)? ws
ws ::= [ \t\n]*
"""
LARK_SUM = r"""
?start: sum
?sum: product | sum "+" product | sum "-" product
?product: atom | product "*" atom
?atom: NUMBER | "-" atom | "(" sum ")"
NUMBER: /[0-9]+(\.[0-9]*)?/
%ignore " "
"""


URL = r"^(https?:\/\/)?([\da-z\.-]+)\.([a-z\.]{2,6})([\/\w \.-]*)*\/?$"


@pytest.mark.parametrize(
    ("kind", "constraint"),
    [
        ("grammar", JSON_GRAMMAR),
        ("grammar", LARK_SUM),
        ("grammar", 'root ::= e\ne ::= t (("+" | "-") t)*\nt ::= [0-9]+ | "(" e ")"'),
        ("grammar", 'root ::= list\nlist ::= item "," list | item\nitem ::= [a-z]+'),
        ("grammar", 'root ::= block\nblock ::= stmt block | ""\nstmt ::= "x;" | "{" block "}"'),
        ("grammar", 'root ::= s\ns ::= "(" s ")" | "(" s s ")" | "a"'),
        ("grammar", 'root ::= sexp\nsexp ::= [a-z]+ | "(" (sexp " ")* ")"'),
        ("grammar", 'root ::= "if" e root | "x"\ne ::= "y" | "(" e "+" e ")"'),
        ("grammar", 'root ::= "s s | s s" s # s ::= s s\ns ::= "a"'),
        ("regex", r"(\w+\s?)+"),
        ("regex", r"(a+b)*c*?(d?e)*"),
        ("regex", URL),
        ("json", {"type": "string", "pattern": URL}),
        ("regex", "([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12},){0,100}"),
        ("regex", r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)"),
    ],
)
def test_grammars_and_patterns_that_people_write_are_within_the_bounds(
    kind: str, constraint: str
) -> None:
    assert excess_of(kind, constraint) is None


RULES = st.lists(
    st.lists(st.sampled_from(["a", "b", "c", '"x"', '"y"?', '("z" | a)*', "|"]), max_size=5),
    min_size=3,
    max_size=3,
)


@given(RULES)
@example([["b"], ["c"], ["a", "a"]])
def test_a_rule_that_refers_to_itself_at_both_ends_is_found_in_any_grammar(
    rules: list[list[str]],
) -> None:
    text = "\n".join(f"{n} ::= {' '.join(body)}" for n, body in zip("abc", rules, strict=True))
    assert shape_of(f'{text}\nroot ::= s a\ns ::= "q" | s s', is_grammar=True).both_ends


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 60_000, '("a" ' * 12_000, "a ::= a\n" * 8_000, "s " * 32_000, "a?" * 32_000),
        *("a{" + " " * 60_000 + "x", ("a{" + " " * 100 + "x") * 500, "[" * 60_000, "[a" * 30_000),
        *(
            "a{" + "1" * 60_000,
            "?" * 60_000,
            "a" * 60_000 + ":" * 1_000,
            "'" * 30_001,
            "[^" * 30_000,
        ),
    ],
)
@pytest.mark.parametrize("is_grammar", [False, True])
def test_computing_the_shape_of_a_large_text_takes_linear_work(text: str, is_grammar: bool) -> None:
    began = time.process_time()
    shape_of(text, is_grammar)
    assert time.process_time() - began < 2.0  # of CPU time; a quadratic one would take minutes


def test_the_constraints_that_every_field_is_tried_with_never_make_the_bounds_raise() -> None:
    everything = (
        *(("json", schema) for schema in SCHEMAS),
        *(("regex", regex) for regex in REGEXES),
        *(("grammar", grammar) for grammar in GRAMMARS),
        *(("choice", choice) for choice in CHOICES),
    )
    assert {excess_of(kind, constraint) is None for kind, constraint in everything} == {True, False}


@pytest.mark.parametrize(
    ("pattern", "simple"),
    [
        ("(a*)*b", "(a*)b"),
        ("((a*)*)*", "((a*))"),
        ("(?:a+)*", "(?:a*)"),
        ("(a*)+", "(a*)"),
        ("(a+)+", "(a+)"),
        ("(a*)*(b+)+c", "(a*)(b+)c"),
        (r"([\/\w ]*)*\/?", r"([\/\w ]*)\/?"),
        *((kept, kept) for kept in ("(a*|b)*", "(a*b)*", "(a{2,})*", "(a?)*", "(a*)*?", "(a*?)*")),
        *((kept, kept) for kept in ("(a*)", "a**", "(a*)*{2}", r"\(a*\)*", "[(a*)*]", "(a*")),
    ],
)
def test_a_repetition_of_nothing_but_a_repetition_is_simplified(pattern: str, simple: str) -> None:
    assert simplified(pattern) == simple


@given(PATTERNS)
@example("((a*)*b)*(?:c+)+")
def test_a_simplified_pattern_matches_the_same(pattern: str) -> None:
    try:
        before, after = re.compile(pattern), re.compile(simplified(pattern))
    except (re.error, OverflowError, RecursionError):
        return
    for text in ("", "a", "aa", "aab", "bcc", "abcab", "0", " ", "a0"):
        assert bool(before.fullmatch(text)) == bool(after.fullmatch(text))


PIECES = {
    "a star of a star": ("regex", "x(a*|b)*y", "`(a*|b)*`", "Write `a*` instead of `(a*)*`."),
    "a long star": ("regex", f"({'a*|' * 30}b)*", f"`({'a*|' * 30}"[:58] + "...`", "Write `a*`"),
    "a sum": ("grammar", 'root ::= e\ne ::= e "+" e | "1"\n', '`e "+" e`', "Write `s ::= item s"),
    "twice": ("grammar", 'root ::= "a"\n  s* s*\ns ::= "b"\n', '`"a" s* s*`', "instead of `a* a*`"),
    "levels": ("regex", "x((a{0,99}){0,99})?", "`(a{0,99}){0,99}`", "do not nest repetitions."),
    "a count": ("regex", "xa{200000}", "`a{200000}`", "Repeat less"),
    "a pattern": ("json", {"pattern": "b(a*|b)*"}, "`(a*|b)*`", "Write `a*` instead of `(a*)*`."),
}


@pytest.mark.parametrize("name", PIECES)
def test_a_rejection_quotes_the_finding_with_the_reason_and_an_alternative(name: str) -> None:
    kind, constraint, piece, remedy = PIECES[name]
    said = str(excess_of(kind, constraint))
    assert piece in said
    assert "each token of an answer" in said
    assert remedy in said
