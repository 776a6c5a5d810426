"""Places where a text can be cut without changing its tokens.

The Rust tokenizer first extracts the added tokens of a text, then normalizes, splits and encodes
each stretch between them separately. Some tokenizers also check whether a stretch is the text's
first. Source: `AddedVocabulary::extract_and_normalize` of tokenizers 0.23. So a text can be cut
only right before an added token that is found there regardless of the text before it.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence

from tokenizers import AddedToken, Tokenizer

# Minimum length of a piece, except the last: each has a fixed cost in time and memory.
MIN_PIECE_CHARS = 1024
# Not a space, which the tokens next to it may absorb, and not part of a word, which may end there.
_NO_PART_OF_A_WORD = frozenset(string.punctuation) - {"_"}


def safe_to_cut_before(tokenizer: Tokenizer, template: str) -> tuple[str, ...]:
    """Return the added tokens of a chat template before which a text can be cut."""
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    mentioned = sorted(content for content in added if content in template)
    return tuple(content for content in mentioned if _is_found_anywhere(added[content], added))


def _is_found_anywhere(token: AddedToken, added: Collection[str]) -> bool:
    content = token.content
    if not content or content[0] not in _NO_PART_OF_A_WORD:
        return False
    if token.normalized or token.lstrip or token.single_word:
        return False
    return not any(_hides(other, content) for other in added)


def _hides(other: str, content: str) -> bool:
    """Return whether the other token may be found at the start of `content`, or before it without
    ending there."""
    if other != content and other.startswith(content):
        return True
    ends = (other[begin:] for begin in range(1, len(other)))
    return any(end.startswith(content) or content.startswith(end) for end in ends)


def pieces(text: str, before: Sequence[str], at_least: int = MIN_PIECE_CHARS) -> list[str]:
    """Return the text in pieces of at least `at_least` characters, except the last.

    Texts with the same beginning are cut in the same way there, except in its last piece.
    """
    starts = [0]
    found = {content: text.find(content, at_least) for content in before}
    while at := min((place for place in found.values() if place > 0), default=0):
        starts.append(at)
        for content, place in found.items():
            if 0 < place < at + at_least:
                found[content] = text.find(content, at + at_least)
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
