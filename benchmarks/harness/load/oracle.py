"""The most cached tokens that any router could get for a sequence of prompts. Pure.

The oracle sends each request where most of its leading whole segments are, in caches that never
evict. A segment counts once a request with it has started: vLLM shares blocks that are still being
computed. At least one token of a prompt is always computed. Answers do not count, since no prompt
of the benchmark repeats them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def most_cached(prompts: Iterable[Sequence[int]], segment_tokens: int) -> list[int]:
    """Cached tokens of each prompt (token ids), in the order in which they started."""
    root: _Node = {}
    return [_matched_then_added(root, prompt, segment_tokens) for prompt in prompts]


# A trie of segments.
_Node = dict[tuple[int, ...], "_Node"]


def _matched_then_added(root: _Node, prompt: Sequence[int], segment_tokens: int) -> int:
    node, matched, known = root, 0, True
    for end in range(segment_tokens, len(prompt) + 1, segment_tokens):
        segment = tuple(prompt[end - segment_tokens : end])
        known = known and segment in node
        if known and end < len(prompt):
            matched = end
        node = node.setdefault(segment, {})
    return matched
