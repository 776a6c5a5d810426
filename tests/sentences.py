"""People read whole sentences, each of which begins as one and ends as one."""

import re

# a name in quotes, an address or a number may come first
_BEGINS = re.compile(r"[A-Z0-9'\"`/]")
_WORDS = re.compile(r"[^\s]+")


def assert_sentences(text: str) -> None:
    """Assert that the text consists of sentences of three words or more: two words are a riddle."""
    assert text.endswith((".", "!", "?")), f"does not end: {text!r}"
    for sentence in re.split(r"(?<=[.?!])\s+", text):
        assert _BEGINS.match(sentence), f"does not begin: {sentence!r}"
        assert "  " not in sentence and "\n" not in sentence, f"is not one line: {sentence!r}"
    assert len(_WORDS.findall(text)) >= 3, f"says too little: {text!r}"
