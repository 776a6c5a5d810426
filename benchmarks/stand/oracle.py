"""The most cached tokens any router could have got for a sequence of prompts. Pure.

The oracle sends every request where the longest run of its leading whole segments is, in caches
that never evict anything. A segment counts from the moment a request that holds it has started:
vLLM lets a second request share blocks that the first one is still computing. At least one token
of a prompt is always computed, for the engine needs it to go on from. What the engines answered
is left out: no prompt of the benchmark repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def most_cached(prompts: Iterable[Sequence[int]], segment_tokens: int) -> list[int]:
    """Cached tokens of each prompt (token ids), given in the order in which they started."""
    root: _Node = {}
    return [_matched_then_added(root, prompt, segment_tokens) for prompt in prompts]


# A trie of segments: below each, those that followed it.
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
