"""What a regular expression, grammar or structural tag hides behind an unlikely token.

An answer of `[b-z]+|7(a?a?){0,99}` reaches the group only if its first token begins with `7`. So
what may be slow inside is also followed from its beginning (`grammar_trial.py`): groups with their
repetition, alternatives, rules of a grammar, and all after a long repetition. Never raises.
An unreadable pattern hides nothing: vLLM reports its fault.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from string import ascii_lowercase
from typing import Any

from deployments.engine.vllm.constraints.constraint_shapes import Parser, PatternNode

# Of one pattern, grammar or structural tag: each costs a trial about 10 ms. A grammar of a hundred
# recursive rules has more. Its worst ones are followed.
MOST_INNER, _MOST_FOUND = 256, 4096
# A random answer soon leaves shorter repetitions and texts.
_LONG_REPEAT, _LONG_TEXT = 8, 64
# An element that repeats this often may be slow without another repetition.
_MANY = 64
# The elements after this many others are also followed.
_STRETCH = 32
# At least two elements that repeat or recur can make an answer ambiguous.
_SUSPICIOUS = 2
_PASSES = 8
_LINE_COMMENT = re.compile(r"(#|//).*")
# Formats of xgrammar's structural tags that combine others.
_COMBINED = frozenset({"sequence", "or", "optional", "plus", "star", "repeat"})
_COMBINED |= {"triggered_tags", "token_triggered_tags", "tags_with_separator"}
_COMBINED |= {"dispatch", "token_dispatch"}


def inner_patterns(pattern: str) -> list[str]:
    """Return the different parts of a regular expression that may be slow, the worst first; at most
    one more than MOST_INNER."""
    parsed = Parser(pattern, is_grammar=False)
    parsed.parse()
    if not parsed.is_closed:
        return []
    found: dict[str, int] = {}
    for start, end, weight, _ in _spans(_Weights(parsed.nodes, parsed.rules), parsed.rules):
        if len(found) > MOST_INNER:
            break
        if pattern[start:end] != pattern:
            found.setdefault(pattern[start:end], weight)
    return _worst_first(found)


def inner_grammars(grammar: str) -> list[str]:
    """Return grammars whose first rule is a part of this one that may be slow, the
    worst first; at most MOST_INNER. The old first rule gets another name of the same length."""
    parsed = Parser(grammar, is_grammar=True)
    parsed.parse()
    is_lark = "::=" not in _LINE_COMMENT.sub("", grammar)
    root = "start" if is_lark else "root"
    if not parsed.is_closed or root not in parsed.rules:
        return []
    renamed = _renamed(grammar, root, parsed.names)
    weights = _Weights(parsed.nodes, parsed.rules)
    found: dict[str, int] = {}
    for name, at in parsed.rules.items():
        if name not in ("", root) and weights.is_slow_rule(at):
            found[name] = weights.weight[at]
    rules = {name: at for name, at in parsed.rules.items() if name}
    for start, end, weight, in_regex in _spans(weights, rules):
        if len(found) >= _MOST_FOUND:
            break
        source = renamed[start:end]
        found.setdefault(f"/{source}/" if in_regex else source, weight)
    define = ": " if is_lark else " ::= "
    return [f"{root}{define}{source}\n{renamed}" for source in _worst_first(found)[:MOST_INNER]]


def inner_formats(tag: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return structural tags of the formats inside of one, as `inner_patterns`, outermost first."""
    found: list[dict[str, Any]] = []
    left = deque([tag.get("format")])
    while left and len(found) <= MOST_INNER:
        inner = left.popleft()
        if isinstance(inner, list):
            left += inner
        elif isinstance(inner, Mapping):
            if inner.get("type") in _COMBINED and inner is not tag.get("format"):
                found.append(dict(inner))
            elements = inner.get("elements")
            if inner.get("type") == "sequence" and isinstance(elements, list):
                found += [{**inner, "elements": rest} for rest in _rests(elements)]
            left += [inner[name] for name in _INSIDE if name in inner]
    return [{"type": "structural_tag", "format": inner} for inner in found[: MOST_INNER + 1]]


_INSIDE = ("elements", "content", "tags", "rules")


def _rests(elements: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the elements after each one that an answer may not leave."""
    for at, element in enumerate(elements[: MOST_INNER + 1]):
        is_text = isinstance(element, Mapping) and element.get("type") in ("const_string", "token")
        if not is_text and len(elements) - at > 2:
            yield list(elements[at + 1 :])


def _worst_first(found: Mapping[str, int]) -> list[str]:
    return sorted(found, key=lambda source: -found[source])


def _renamed(grammar: str, root: str, names: Mapping[str, Sequence[int]]) -> str:
    """Return the grammar with another name of the same length for its first rule."""
    letters = product(ascii_lowercase, repeat=len(root))
    other = next(name for each in letters if (name := "".join(each)) not in names)
    pieces, last = [], 0
    for at in sorted(names[root]):
        pieces += [grammar[last:at], other]
        last = at + len(root)
    return "".join([*pieces, grammar[last:]])


class _Weights:
    """`weight`: how many elements of each node repeat or recur, those of a repeated group twice;
    `long`: whether an answer may stay in a node; `refers`: to a rule that repeats or recurs."""

    def __init__(self, nodes: Sequence[PatternNode], rules: Mapping[str, int]) -> None:
        self.nodes = nodes
        self.weight, self.long = [0] * len(nodes), [False] * len(nodes)
        self.refers = [False] * len(nodes)
        plain = _plain(nodes, rules)
        for at, node in enumerate(nodes):
            parts = node.parts
            self.long[at] = any(self.long[part] for part in parts)
            self.refers[at] = any(self.refers[part] for part in parts)
            if node.kind == "ref":
                self.refers[at] = node.text in rules and node.text not in plain
                self.weight[at], self.long[at] = int(self.refers[at]), self.refers[at]
            elif node.kind == "seq":
                self.weight[at] = sum(self.weight[part] for part in parts)
                self.long[at] |= len(parts) >= _STRETCH
            elif node.kind == "repeat":
                most = node.most if node.least < 2 or node.most is not None else node.least
                is_many = most is not None and most >= _MANY
                branches = self._branches(parts[0])
                self.weight[at] = self.weight[parts[0]] + 1 + (branches > 1) + is_many
                self.long[at] |= most is None or most >= _LONG_REPEAT
            else:
                self.weight[at] = max((self.weight[part] for part in parts), default=0)
                self.long[at] |= len(node.text) >= _LONG_TEXT

    def is_slow_rule(self, at: int) -> bool:
        return self.weight[at] >= _SUSPICIOUS or self.refers[at]

    def _branches(self, at: int) -> int:
        while self.nodes[at].kind == "alt" and len(self.nodes[at].parts) == 1:
            at = self.nodes[at].parts[0]
        return len(self.nodes[at].parts) if self.nodes[at].kind == "alt" else 1


def _plain(nodes: Sequence[PatternNode], rules: Mapping[str, int]) -> set[str]:
    """Return the rules that surely neither repeat nor recur."""
    plain: set[str] = set()
    for _ in range(_PASSES):
        is_plain: list[bool] = []
        for node in nodes:
            refers = node.kind == "ref" and node.text in rules and node.text not in plain
            own = node.kind != "repeat" and not refers
            is_plain.append(own and all(is_plain[part] for part in node.parts))
        found = {name for name, at in rules.items() if is_plain[at]}
        if found == plain:
            break
        plain = found
    return plain


def _spans(weights: _Weights, rules: Mapping[str, int]) -> Iterator[tuple[int, int, int, bool]]:
    """Yield start, end, weight, and whether it is in a `/regex/`, of what may be slow: outermost
    first."""
    nodes, weight = weights.nodes, weights.weight
    wholes = set(rules.values())
    for at in reversed(range(len(nodes))):
        node, parts = nodes[at], nodes[at].parts
        if weight[at] < _SUSPICIOUS:
            continue
        is_group = node.kind == "repeat" and nodes[node.parts[0]].kind != "text"
        if is_group and at not in wholes:
            yield node.start, node.end, weight[at], node.in_regex
        if node.kind == "alt":
            is_alone = len(parts) == 1 and (at in wholes or nodes[parts[0]].kind == "alt")
            for part in () if is_alone else parts:
                if weight[part] >= _SUSPICIOUS and nodes[part].end:
                    yield nodes[part].start, nodes[part].end, weight[part], nodes[part].in_regex
        if node.kind == "seq":
            left = weight[at]
            for index, part in enumerate(parts[:-1]):
                left -= weight[part]
                if left < _SUSPICIOUS:
                    break
                if weights.long[part] or index % _STRETCH == _STRETCH - 1:
                    yield nodes[part].end, node.end, left, node.in_regex
