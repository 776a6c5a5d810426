"""The shape of a regular expression or grammar: what repeats within what, and what is ambiguous.

Parses what all dialects have in common: groups, classes, escapes, `|`, `*`, `+`, `?` and `{n,m}`;
in a grammar (EBNF or Lark) also rules, strings, `/regex/` and `~ n..m`. Never raises: what it
cannot parse counts as text. It finds ambiguities that make each token of an answer slower than the
one before. A trial finds others (`grammar_follow.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

# Possessive: without a match, backtracking would take minutes for a kilobyte of spaces.
_REPEAT = re.compile(r"\s*+(\d*+)\s*+(,?+)\s*+(\d*+)\s*+\}|\s*+(\d++)\s*+\.\.\s*+(\d++)")
_RULE = re.compile(r"[?!]*+([A-Za-z_][\w-]*+)(?:\.\d++)?\s*+(?:::=|:(?![:=]))")
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_GROUP = re.compile(r"\?(?:P?<\w+>|[a-zA-Z-]*:|<?[=!]|>)")
_COMMENT = re.compile(r"(?:#|//|%|->)[^\n]*")
_MOST_DIGITS = 18
_SIMPLE = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_REPEATS = ("*", "+", "?", "{")
_NO_WIDTH = frozenset("bBAZz")
_PLAIN = re.compile(r"[^\\\[\](){}~*+?|^$]+(?![*+?{~])")
# Of larger ones, only the repetitions are counted: this runs in a replica's event loop.
_MOST_RULES, _MOST_READ_BYTES, _MOST_STEPS = 300, 16_384, 50_000
_PASSES = 4


@dataclass(frozen=True)
class Shape:
    """`repetitions`: the most of one element, multiplied over nested groups; at least 1. `nested`:
    the same over at least two levels; 0: none is nested.

    The others are pieces of the source, empty if there is none. `most_repeated` and `most_nested`
    repeat that often. `star` repeats nothing but an optional repetition, both without an upper
    bound. In `both_ends` the rule `recursive` recurs at both ends, or twice in a row. In
    `side_by_side` a grammar repeats the same twice in a row, without an upper bound.
    """

    alternatives: int
    repetitions: int
    nested: int = 0
    most_repeated: str = ""
    most_nested: str = ""
    star: str = ""
    recursive: str = ""
    both_ends: str = ""
    side_by_side: str = ""


class PatternNode(NamedTuple):
    """`kind` is text, empty, ref, seq, alt or repeat; `text` is a source or a rule's name; `most`
    None: without an upper bound. The indexes of `parts` are lower than the node's own.

    `start` and `end` are where its source is; `in_regex`: within a `/regex/` of a grammar."""

    kind: str
    parts: tuple[int, ...] = ()
    text: str = ""
    least: int = 1
    most: int | None = 1
    start: int = 0
    end: int = 0
    in_regex: bool = False


def shape_of(pattern: str, is_grammar: bool = False) -> Shape:
    """Return the shape of a regular expression, or of a grammar."""
    parsed = Parser(pattern, is_grammar)
    parsed.parse()
    facts = _Facts(parsed.nodes, parsed.rules)
    is_read = len(pattern) <= _MOST_READ_BYTES and len(parsed.rules) <= _MOST_RULES
    facts.count(through_rules=is_read)
    repetitions, nested = max(facts.product, default=1), max(facts.nested, default=0)

    def piece(at: int | None) -> str:
        return "" if at is None else pattern[parsed.nodes[at].start : parsed.nodes[at].end]

    counted = Shape(
        parsed.bars + 1,
        repetitions,
        nested,
        piece(facts.product.index(repetitions) if repetitions > 1 else None),
        piece(facts.nested.index(nested) if nested else None),
    )
    if not is_read:
        return counted
    facts.read()
    recursive, both_ends = facts.recursion() if is_grammar else ("", None)
    return replace(
        counted,
        star=piece(facts.star_of_star()),
        recursive=recursive,
        both_ends=piece(both_ends),
        side_by_side=piece(facts.side_by_side() if is_grammar else None),
    )


def simplified(pattern: str) -> str:
    """Return a regular expression that matches the same, with `(a*)` for `(a*)*`."""
    for _ in range(_PASSES if len(pattern) <= _MOST_READ_BYTES else 0):
        parsed = Parser(pattern, is_grammar=False)
        parsed.parse()
        end = len(pattern)
        for node in reversed(parsed.nodes):
            if node.end <= end and (once := _repeated_once(pattern, parsed.nodes, node)):
                pattern = pattern[: node.start] + once + pattern[node.end :]
                end = node.start
        if end == len(pattern):
            break
    return pattern


def _repeated_once(pattern: str, nodes: Sequence[PatternNode], outer: PatternNode) -> str:
    """Return the source of a group that repeats only a repetition, without its own repetition;
    empty: it is another node."""
    if not _is_unbounded(outer) or nodes[outer.parts[0]].kind != "alt":
        return ""
    group = nodes[outer.parts[0]]
    inner = nodes[group.parts[0]]
    is_last = pattern[inner.end : group.end] == ")" and pattern[outer.end :][:1] not in _REPEATS
    if len(group.parts) > 1 or not _is_unbounded(inner) or not is_last:
        return ""
    star = "+" if outer.least == inner.least == 1 else "*"
    return f"{pattern[group.start : nodes[inner.parts[0]].end]}{star})"


def _is_unbounded(node: PatternNode) -> bool:
    return node.kind == "repeat" and node.most is None and node.least < 2


@dataclass
class Parser:
    """`names`: where each rule is named, also by others; `is_closed`: whether each bracket of a
    group has its other one."""

    pattern: str
    is_grammar: bool
    nodes: list[PatternNode] = field(default_factory=list)
    rules: dict[str, int] = field(default_factory=dict)
    names: dict[str, list[int]] = field(default_factory=dict)
    bars: int = 0
    is_closed: bool = True

    def parse(self) -> None:
        self._frames: list[list[list[int]]] = [[[]]]
        self._opened: list[int] = []
        self._is_repeated, self._has_classes = False, True
        rule, at, end = "", 0, len(self.pattern)
        while at < end:
            if self.is_grammar and (named := self._rule_at(at)):
                self._end_rule(rule)
                rule, at = named.group(1), named.end()
                self.names.setdefault(rule, []).append(named.start(1))
            else:
                at = self._element(at)
        self._end_rule(rule)

    def _rule_at(self, at: int) -> re.Match[str] | None:
        is_first = at == 0 or not (self.pattern[at - 1].isalnum() or self.pattern[at - 1] in "_-?!")
        return _RULE.match(self.pattern, at) if is_first else None

    def _end_rule(self, name: str) -> None:
        while len(self._frames) > 1:
            self.is_closed = False
            self._close(len(self.pattern))
        self.rules[name] = self._alternatives(self._frames[0])
        self._frames = [[[]]]

    def _element(self, at: int) -> int:
        """Parse an element or a part of one. Return the index after it."""
        pattern, char = self.pattern, self.pattern[at]
        after = at + 1
        if not self.is_grammar and (plain := _PLAIN.match(pattern, at)):
            return self._add("text", at, plain.end())
        if char == "\\":
            kind = "empty" if pattern[after : at + 2] in _NO_WIDTH else "text"
            return self._add(kind, at, at + 2)
        if char == "[":
            return self._add("text", at, self._end_of_class(after))
        if self.is_grammar and char in "\"'":
            stop = _end_of_string(pattern, after, char)
            return self._add("empty" if stop == at + 2 else "text", at, stop)
        if self.is_grammar and (comment := _COMMENT.match(pattern, at)):
            return comment.end()
        if self.is_grammar and char == "/":
            return self._regex(at)
        if self.is_grammar and (name := _NAME.match(pattern, at)):
            self.names.setdefault(name.group(), []).append(at)
            return self._add("ref", at, name.end())
        if char == "(":
            self._frames.append([[]])
            self._opened.append(at)
            self._is_repeated = False
            prefix = None if self.is_grammar else _GROUP.match(pattern, after)
            return prefix.end() if prefix else after
        if char == ")":
            if len(self._frames) > 1:
                self._close(after)
            else:
                self.is_closed = False
        elif char in "{~" and (found := _REPEAT.match(pattern, after)):
            self._repeat(*_bounds_of(found), found.end())
            return found.end()
        elif char in _SIMPLE:
            # after a repetition, `?` and `+` of a regular expression change how it matches
            if self.is_grammar or not self._is_repeated or char == "*":
                self._repeat(*_SIMPLE[char], after)
        elif char == "|":
            self.bars += 1
            self._frames[-1].append([])
            self._is_repeated = False
        elif char in "^$" and not self.is_grammar:
            return self._add("empty", at, after)
        elif not (self.is_grammar and char.isspace()):
            return self._add("text", at, after)
        return after

    def _end_of_class(self, at: int) -> int:
        """Return the index after a character class that started just before `at`; `[]]` and `[^]]`
        contain `]`."""
        pattern = self.pattern
        start = at + 1 if pattern[at : at + 1] == "^" else at
        at = start
        while at < len(pattern) and self._has_classes:
            if pattern[at] == "\\":
                at += 1
            elif pattern[at] == "]" and at > start:
                return at + 1
            at += 1
        self._has_classes = False  # no later one ends either
        return start  # it is not a set

    def _regex(self, at: int) -> int:
        """Parse `/regex/` of a Lark grammar."""
        end = _end_of_string(self.pattern, at + 1, "/")
        inner = Parser(self.pattern[at + 1 : end - 1], is_grammar=False)
        inner.parse()
        first = len(self.nodes)
        for node in inner.nodes:
            parts = tuple(first + part for part in node.parts)
            start, stop = at + 1 + node.start, at + 1 + node.end
            self.nodes.append(node._replace(parts=parts, start=start, end=stop, in_regex=True))
        self.bars += inner.bars
        self.is_closed &= inner.is_closed
        inside = len(self.nodes) - 1
        while end < len(self.pattern) and self.pattern[end] in "imslux":  # its flags
            end += 1
        self._push(self._made(PatternNode("alt", (inside,), start=at, end=end)))
        return end

    def _add(self, kind: str, start: int, end: int) -> int:
        end = min(end, len(self.pattern))
        self._push(
            self._made(PatternNode(kind, text=self.pattern[start:end], start=start, end=end))
        )
        return end

    def _push(self, node: int) -> None:
        self._frames[-1][-1].append(node)
        self._is_repeated = False

    def _made(self, node: PatternNode) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _close(self, end: int) -> None:
        node = self._alternatives(self._frames.pop())
        self.nodes[node] = self.nodes[node]._replace(start=self._opened.pop(), end=end)
        self._push(node)

    def _alternatives(self, frame: Sequence[Sequence[int]]) -> int:
        parts = tuple(
            one[0] if len(one) == 1 else self._over("seq" if one else "empty", one) for one in frame
        )
        return self._over("alt", parts)

    def _over(self, kind: str, parts: Sequence[int]) -> int:
        """Make a node over adjacent parts."""
        spans = [self.nodes[part] for part in parts if self.nodes[part].end]
        start, end = (spans[0].start, spans[-1].end) if spans else (0, 0)
        return self._made(PatternNode(kind, tuple(parts), start=start, end=end))

    def _repeat(self, least: int, most: int | None, end: int) -> None:
        elements = self._frames[-1][-1]
        if elements:
            part = elements[-1]
            start = self.nodes[part].start
            elements[-1] = self._made(PatternNode("repeat", (part,), "", least, most, start, end))
        self._is_repeated = True


class _Facts:
    """What holds for each node. Rules that refer to each other are read a few times."""

    def __init__(self, nodes: Sequence[PatternNode], rules: Mapping[str, int]) -> None:
        self._nodes, self._rules = nodes, rules
        self.nullable, self.loose = [False] * len(nodes), [False] * len(nodes)
        self.product, self.nested = [1] * len(nodes), [0] * len(nodes)
        # text never matches nothing, and repeats nothing
        self._inner = [at for at, node in enumerate(nodes) if node.kind != "text"]
        self._recursive: frozenset[str] = frozenset()
        self._has_refs = any(node.kind == "ref" and node.text in rules for node in nodes)
        self._steps = 0

    def count(self, through_rules: bool) -> None:
        """Multiply the repetitions, also through rules that are not recursive."""
        if through_rules and self._has_refs:
            refs = {rule: set(self._texts(node)) for rule, node in self._rules.items()}
            reached = _Reached(refs)
            self._recursive = frozenset(rule for rule in refs if reached(rule, rule))
        for _ in range(_PASSES if through_rules and self._has_refs else 1):
            before = (list(self.product), list(self.nested))
            for at in self._inner:
                node, parts = self._nodes[at], self._nodes[at].parts
                is_followed = through_rules and node.text not in self._recursive
                if node.kind == "ref" and is_followed and node.text in self._rules:
                    parts = (self._rules[node.text],)
                product = max((self.product[part] for part in parts), default=1)
                nested = max((self.nested[part] for part in parts), default=0)
                if node.kind == "repeat":
                    count = max(1, node.most if node.most is not None else node.least)
                    nested = max(nested, product if count > 1 and product > 1 else 0)
                    nested, product = nested * count, product * count
                self.product[at], self.nested[at] = product, nested
            if (self.product, self.nested) == before:
                break

    def read(self) -> None:
        """Find which nodes may be empty, or nothing but a repetition."""
        for _ in range(_PASSES if self._has_refs else 1):
            before = (list(self.nullable), list(self.loose))
            for at in self._inner:
                self.nullable[at], self.loose[at] = self._is_nullable(at), self._is_loose(at)
            if (self.nullable, self.loose) == before:
                break

    def _texts(self, node: int) -> Iterator[str]:
        return (self._nodes[at].text for at in self._within(node))

    def _within(self, node: int) -> Iterator[int]:
        """Yield the references below a node."""
        left = [node]
        while left:
            self._steps += 1
            at = left.pop()
            if self._nodes[at].kind == "ref":
                yield at
            left += self._nodes[at].parts

    def _is_nullable(self, at: int) -> bool:
        node = self._nodes[at]
        of_parts = [self.nullable[part] for part in node.parts]
        if node.kind == "ref":
            return node.text in self._rules and self.nullable[self._rules[node.text]]
        if node.kind == "seq":
            return all(of_parts)
        return node.kind == "empty" or node.least == 0 or any(of_parts)

    def _is_loose(self, at: int) -> bool:
        """Return whether it may be nothing but a repetition without an upper bound."""
        node = self._nodes[at]
        of_parts = [self.loose[part] for part in node.parts]
        if node.kind == "ref":
            return node.text in self._rules and self.loose[self._rules[node.text]]
        if node.kind == "repeat" and node.most is None:
            return True
        if node.kind == "seq":
            needed = sum(not self.nullable[part] for part in node.parts)
            return any(
                loose and needed == (not self.nullable[part])
                for part, loose in zip(node.parts, of_parts, strict=True)
            )
        return any(of_parts)

    def star_of_star(self) -> int | None:
        for at, node in enumerate(self._nodes):
            if node.kind == "repeat" and node.most is None:
                inner = node.parts[0]
                if self.nullable[inner] and self.loose[inner]:
                    return at
        return None

    def side_by_side(self) -> int | None:
        for at, node in enumerate(self._nodes):
            if node.kind == "seq":
                for one, other in pairwise(node.parts):
                    if self._repeated(one) and self._repeated(one) == self._repeated(other):
                        return at
        return None

    def _repeated(self, at: int) -> str:
        """Return what a node repeats without an upper bound; empty: nothing, or a group."""
        node = self._nodes[at]
        if node.kind != "repeat" or node.most is not None:
            return ""
        inner = node.parts[0]
        while self._nodes[inner].kind == "alt" and len(self._nodes[inner].parts) == 1:
            inner = self._nodes[inner].parts[0]
        return self._nodes[inner].text

    def recursion(self) -> tuple[str, int | None]:
        """Return a rule that recurs at both ends of an alternative, or twice in a row at its end,
        and the alternative; empty: there is none."""
        starts = {rule: self._edge(node, 1) for rule, node in self._rules.items()}
        ends = {rule: self._edge(node, -1) for rule, node in self._rules.items()}
        first = _Reached({rule: self._names(edge) for rule, edge in starts.items()})
        last = _Reached({rule: self._names(edge) for rule, edge in ends.items()})
        for rule in self._rules:
            for at in starts[rule] & ends[rule] if rule in self._recursive else ():
                if self._steps > _MOST_STEPS or self._nodes[at].kind != "seq":
                    continue
                begun = self._leading_to(rule, self._edge(at, 1), first)
                ended = self._leading_to(rule, self._edge(at, -1), last)
                if begun and ended and len(begun | ended) > 1:
                    return rule, at
        for index, node in enumerate(self._nodes if self._recursive else ()):
            texts = [self._nodes[part].text for part in node.parts if not self._is_gap(part)]
            for name, after in pairwise(texts) if node.kind == "seq" else ():
                if name == after and name in self._recursive and last(name, name):
                    return name, index
        return "", None

    def _is_gap(self, at: int) -> bool:
        return self.nullable[at] and self._nodes[at].kind != "ref"

    def _leading_to(self, rule: str, edge: set[int], reached: _Reached) -> set[int]:
        """Return the references of an edge that are, or lead at that edge to, a rule."""
        refs = {at: self._nodes[at].text for at in edge if self._nodes[at].kind == "ref"}
        return {at for at, name in refs.items() if name == rule or reached(name, rule)}

    def _names(self, edge: set[int]) -> set[str]:
        return {self._nodes[at].text for at in edge if self._nodes[at].kind == "ref"}

    def _edge(self, node: int, direction: int) -> set[int]:
        """Return the nodes that may come first (1) or last (-1) in a node, with itself."""
        found: set[int] = set()
        left = [node]
        while left:
            self._steps += 1
            at = left.pop()
            if at in found:
                continue
            found.add(at)
            parts = self._nodes[at].parts[::direction]
            if self._nodes[at].kind == "seq":
                needed = next((i for i, p in enumerate(parts) if not self.nullable[p]), len(parts))
                parts = parts[: needed + 1]
            left += parts
        return found


class _Reached:
    """Which names lead to which, in at least one step."""

    def __init__(self, next_of: Mapping[str, set[str]]) -> None:
        self._at = {name: at for at, name in enumerate(next_of)}
        self._from = [
            sum(1 << self._at[name] for name in names if name in self._at)
            for names in next_of.values()
        ]
        for through in range(len(self._from)):
            for start, reached in enumerate(self._from):
                if reached >> through & 1:
                    self._from[start] |= self._from[through]

    def __call__(self, start: str, end: str) -> bool:
        known = start in self._at and end in self._at
        return known and bool(self._from[self._at[start]] >> self._at[end] & 1)


def _bounds_of(repeat: re.Match[str]) -> tuple[int, int | None]:
    """Return the bounds of `{n}`, `{n,}`, `{n,m}` or `n..m`; `{n,}` counts as n."""
    low, _, high, first, second = repeat.groups()
    numbers = [int(text[:_MOST_DIGITS]) for text in (low or first, high or second) if text]
    if not numbers:
        return 1, 1
    least = numbers[0] if (low or first) else 0
    return least, max(numbers)


def _end_of_string(pattern: str, at: int, quote: str) -> int:
    start = at
    while at < len(pattern) and pattern[at] != "\n":
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == quote:
            return at + 1
        at += 1
    return start
