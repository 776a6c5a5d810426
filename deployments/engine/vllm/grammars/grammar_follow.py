"""Follow a compiled constraint as an answer would, and judge the CPU time of each token.

For each token of an answer, vLLM fills a mask of the allowed tokens and advances the constraint.
All requests of the engine wait meanwhile. A constraint that compiles at once can take seconds per
token, or take longer with each token. Here it is followed on several ways: random tokens, one token
again and again, the longest tokens, and tokens that end strings and brackets. A way that ends
begins again. The judgment is a function of the milliseconds per token on a quiet core. On busy
cores, a token takes up to 1.6 times the CPU time, as does a fixed computation at the same time.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import mmap
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

logger = logging.getLogger("vllm.antefix")

# CPU time per token and 65,536 tokens of the vocabulary: masks of a larger one take longer.
# xgrammar takes 2.3 to 3.1 ms for a string with `maxLength` 5,000.
TOKEN_MS, TOKEN_MS_VOCABULARY = 5.0, 65_536
# All sequences of a request together: they make a step of 16 ms at most three times as long.
REQUEST_MS = 32.0
# Tokens in a row whose mean counts. One slow token delays others once.
IN_A_ROW = 8
# Tokens of each way, and of one whose tokens take longer and longer.
TOKENS, RISING_TOKENS = 256, 1024
# Tokens of all parts of a constraint, and of one part at least.
PARTS_TOKENS, FEWEST_TOKENS = 4096, 32
# What the parts that are not followed count, as a share of what is allowed: the parts of ordinary
# grammars take less.
UNFOLLOWED_SHARE = 0.2
# Below this, a rise is noise. Later the engine's own watch ends the request (`mask_watch.py`).
RISE_MS = 0.25
# An interrupted core makes no constraint slower than this multiple of what is allowed.
_NOISE = 10
TRIES = 4
# The other thread of a core slows this one by at most this factor.
_MOST_SLOWNESS = 2.0
_STEP_OF_A_RISE = 1.1
_SEED = 0
# How often a token that ends something is taken, if one is allowed.
_ENDS = 0.7
_STRUCTURE = frozenset('"{}[],:')
# How tokenizers write a space, a tab, and the ends of lines.
_BLANKS = str.maketrans("ĠĉĊč▁", "     ")
LONGEST = 4096


def highest_ms(ms: Sequence[float]) -> float:
    """Return the highest mean of IN_A_ROW tokens in a row. Missing ones count as 0."""
    ends = range(1, len(ms) + 1)
    sums = (sum(ms[max(0, end - IN_A_ROW) : end]) for end in ends)
    return max(sums, default=0.0) / IN_A_ROW


def rises(ms: Sequence[float]) -> bool:
    """Return whether tokens take longer the more tokens precede them, from quarter to quarter."""
    first, second, third, last = _quarters(ms)
    steps = ((first, second), (second, third), (third, last))
    return last >= RISE_MS and all(after >= _STEP_OF_A_RISE * before for before, after in steps)


def expected_ms(ms: Sequence[float], tokens: int) -> float:
    """Return the CPU time per token that an answer of `tokens` reaches: `highest_ms`, or more if it
    rises. The rise continues as a power of the number of tokens."""
    found = highest_ms(ms)
    if len(ms) < TOKENS or len(ms) >= tokens or not rises(ms):
        return found
    _, second, _, last = _quarters(ms)
    power = math.log(last / max(second, last / 1000)) / math.log(7 / 3)
    later: float = last * (tokens / (len(ms) * 7 / 8)) ** power
    return max(found, later)


def _quarters(ms: Sequence[float]) -> tuple[float, float, float, float]:
    size = len(ms) // 4
    if not size:
        return 0.0, 0.0, 0.0, 0.0
    parts = (ms[at * size : (at + 1) * size] for at in range(4))
    first, second, third, last = (sum(part) / size for part in parts)
    return first, second, third, last


class AllowedTokens:
    """The tokens that a mask allows, except those that end an answer."""

    def __init__(self, words: Any) -> None:
        """`words`: a bit per token."""
        self._words = words
        self._set = np.flatnonzero(words)

    def __bool__(self) -> bool:
        return bool(len(self._set))

    def without(self, words: Any) -> AllowedTokens:
        """Return those whose bit is not in `words`, or all if there are no others."""
        return AllowedTokens(self._words & ~words) or self

    def __contains__(self, token: int) -> bool:
        return bool(self._words[token >> 5] >> np.uint32(token & 31) & 1)

    def any(self, draw: random.Random) -> int:
        word = int(self._set[draw.randrange(len(self._set))])
        bits = int(self._words[word])
        return 32 * word + draw.choice([bit for bit in range(32) if bits >> bit & 1])

    def among(self, tokens: Any) -> Any:
        """Return those of an array of tokens that are allowed."""
        return tokens[(self._words[tokens >> 5] >> (tokens & 31).astype(np.uint32) & 1) == 1]


# Chooses the next token, after the previous one; None: it is the first.
Choose = Callable[[AllowedTokens, int | None], int]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a tokenizer. `answer` and `blank` have a bit per token, of those that do not end an
    answer and of white space; `longest` are in this order; `structure` are of quotes, brackets,
    commas and colons.

    Schemas allow white space anywhere, where it leads nowhere. So most ways avoid it.
    """

    answer: Any
    blank: Any
    longest: Any
    structure: Any

    @classmethod
    def of(cls, tokenizer: Any, size: int) -> Vocabulary:
        texts = _texts_of(tokenizer, size)
        special = set(tokenizer.all_special_ids) | {tokenizer.eos_token_id}
        plain = [token for token in range(size) if token not in special and texts[token]]
        blank = [token for token in plain if not texts[token].translate(_BLANKS).strip()]
        structure = [token for token in plain if set(texts[token]) <= _STRUCTURE]
        longest = sorted(set(plain) - set(blank), key=lambda token: (-len(texts[token]), token))
        return cls(
            _bits(set(range(size)) - special, size),
            _bits(blank, size),
            np.array(longest[:LONGEST], dtype=np.int64),
            np.array(structure, dtype=np.int64),
        )

    def allowed(self, mask: Any) -> AllowedTokens:
        """Return what a row of a mask allows."""
        return AllowedTokens(mask.numpy().view(np.uint32)[: len(self.answer)] & self.answer)

    def ways(self) -> tuple[Choose, ...]:
        """Return what each way chooses, which is the same again each time."""
        draw = random.Random(_SEED)

        def any_but_blank(allowed: AllowedTokens, last: int | None) -> int:
            return allowed.without(self.blank).any(draw)

        def same(allowed: AllowedTokens, last: int | None) -> int:
            return last if last is not None and last in allowed else allowed.any(draw)

        def longest(allowed: AllowedTokens, last: int | None) -> int:
            found = allowed.among(self.longest)
            return int(found[0]) if len(found) else any_but_blank(allowed, last)

        def ending(allowed: AllowedTokens, last: int | None) -> int:
            found = allowed.among(self.structure) if draw.random() < _ENDS else ()
            if len(found):
                return int(found[draw.randrange(len(found))])
            return any_but_blank(allowed, last)

        return any_but_blank, same, longest, ending


def _texts_of(tokenizer: Any, size: int) -> list[str]:
    """Return the text of each token; empty if the tokenizer lists none."""
    try:
        known = tokenizer.convert_ids_to_tokens(list(range(min(size, len(tokenizer)))))
    except Exception as error:
        logger.info("failed to list the tokenizer's tokens: %r", error)
        known = []
    return [str(text or "") for text in known] + [""] * (size - len(known))


def _bits(tokens: Iterable[int], size: int) -> Any:
    words = np.zeros((size + 31) // 32, dtype=np.uint32)
    for token in tokens:
        words[token >> 5] |= np.uint32(1 << (token & 31))
    return words


def most_token_ms(vocabulary_size: int) -> float:
    """Return the allowed CPU time per token."""
    return TOKEN_MS * max(1.0, vocabulary_size / TOKEN_MS_VOCABULARY)


def always_quiet() -> float:
    """Return the slowness of a core without other load."""
    return 1.0


class CoreSlowness:
    """How many times the CPU time of a quiet core a fixed computation takes, from 1 to 2.

    A call takes 15 microseconds. What the computation takes on a quiet core is the shortest time
    that this process and those forked from it have measured.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._shortest_s = ctypes.c_double.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))
        self._shortest_s.value = math.inf

    def __call__(self) -> float:
        began = self._clock()
        sum(range(1000))
        spent_s = max(1e-6, self._clock() - began)
        self._shortest_s.value = min(self._shortest_s.value, spent_s)
        return min(_MOST_SLOWNESS, spent_s / self._shortest_s.value)


@dataclass
class Follower:
    """Follows constraints. `clock` returns the seconds of CPU time of this thread, and `slowness`
    how many times longer the core takes at present than it would alone.

    `followed` counts tokens.
    """

    vocabulary: Vocabulary
    max_model_len: int
    most_ms: float = TOKEN_MS
    clock: Callable[[], float] = time.thread_time
    slowness: Callable[[], float] = always_quiet
    followed: int = 0

    def token_ms(self, grammar: Any, mask: Any, tokens: int = TOKENS) -> float:
        """Return the CPU time per token that an answer reaches, over all ways. Stops at the first
        way that exceeds `most_ms` far, or in all of TRIES: an interrupt may make a token of any
        constraint take long.

        `grammar`: vLLM's StructuredOutputGrammar; `mask` has one row.
        """
        most = 0.0
        for way in range(len(self.vocabulary.ways())):
            found = self._way_ms(grammar, mask, self.vocabulary.ways()[way], tokens)
            for _ in range(TRIES - 1):
                if not self.most_ms < found <= _NOISE * self.most_ms:
                    break
                found = min(found, self._way_ms(grammar, mask, self.vocabulary.ways()[way], tokens))
            most = max(most, found)
            if most > self.most_ms:
                break
        return most

    def parts_ms(
        self, parts: Sequence[Callable[[], Any]], mask: Any, is_late: Callable[[], bool]
    ) -> float:
        """Return the CPU time per token of the slowest part of a constraint; 0: it has none.

        Each function compiles a part. One that cannot be compiled alone is followed in the whole
        only. If it is late before the last one, the others count as a part of what is allowed.
        """
        tokens = max(FEWEST_TOKENS, min(TOKENS, PARTS_TOKENS // max(1, len(parts))))
        most = 0.0
        for compiled in parts:
            if is_late():
                return max(most, UNFOLLOWED_SHARE * self.most_ms)
            with contextlib.suppress(Exception):
                most = max(most, self.token_ms(compiled(), mask, tokens))
            if most > self.most_ms:
                break
        return most

    def _way_ms(self, grammar: Any, mask: Any, choose: Choose, tokens: int) -> float:
        grammar.reset()
        ms: list[float] = []
        spent_ms, enough_ms = 0.0, IN_A_ROW * self.most_ms
        for one in self._steps(grammar, mask, choose):
            ms.append(one)
            spent_ms += one - (ms[-1 - IN_A_ROW] if len(ms) > IN_A_ROW else 0.0)
            rising = len(ms) < RISING_TOKENS and len(ms) >= tokens and rises(ms)
            is_followed = len(ms) >= min(tokens, self.max_model_len) and not rising
            if is_followed or spent_ms > enough_ms or len(ms) >= self.max_model_len:
                break
        return expected_ms(ms, self.max_model_len)

    def _steps(self, grammar: Any, mask: Any, choose: Choose) -> Iterator[float]:
        """Yield the milliseconds of each token on a quiet core, without end unless the constraint
        gives up."""
        last: int | None = None
        slowness = self.slowness()
        while True:
            began = self.clock()
            grammar.fill_bitmask(mask, 0)
            filled = self.clock()
            allowed = self.vocabulary.allowed(mask[0])
            is_over, accepting_s = not allowed, 0.0
            if allowed:
                last = choose(allowed, last)
                accepting = self.clock()
                if not grammar.accept_tokens("", [last]):
                    return  # vLLM ends the request
                accepting_s = self.clock() - accepting
                is_over = grammar.is_terminated()
            self.followed += 1
            before, slowness = slowness, self.slowness()
            # the lower of both: an interrupt of the fixed computation does not excuse the token
            yield 1000 * (filled - began + accepting_s) / min(before, slowness)
            if is_over:
                grammar.reset()
                last = None
