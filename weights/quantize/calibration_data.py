"""Calibration text, which represents the model's future input.

    .txt      one long text
    .jsonl    an object a line: `text`, `prompt`, chat `messages`, or the `turns` of a user

All of it becomes one stream of tokens, conversations through the model's chat template. Windows of
equal length are taken from it, evenly spread. No choice is random, so the same file gives the same
weights. An invalid file is a `Problem` with its line.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.errors import Problem

Conversation = list[dict[str, str]]
Sample = str | Conversation
LEAST_TOKENS = 256

_REMEDY = "use a .txt, or a .jsonl whose lines have `text`, `prompt`, `messages` or `turns`"


def read_samples(file: Path) -> list[Sample]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise Problem(
            f"the calibration text {file} cannot be read: {error.strerror}", "choose another file"
        ) from error
    except UnicodeDecodeError as error:
        raise Problem(
            f"the calibration text {file} is not UTF-8 text (byte {error.start})", _REMEDY
        ) from error
    if file.suffix == ".jsonl":
        lines = enumerate(text.splitlines(), start=1)
        samples = [_sample(line, f"{file}:{number}") for number, line in lines if line.strip()]
    elif file.suffix in (".txt", ".md"):
        samples = [text] if text.strip() else []
    else:
        raise Problem(f"the calibration text {file} has an unknown ending", _REMEDY)
    if not samples:
        raise Problem(f"the calibration text {file} is empty", _REMEDY)
    return samples


def _sample(line: str, where: str) -> Sample:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise Problem(f"{where} is not JSON: {error}", _REMEDY) from error
    match found:
        case {"messages": [{"role": str(), "content": str()}, *_] as messages} if all(
            isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m
            for m in messages
        ):
            return [{"role": str(m["role"]), "content": m["content"]} for m in messages]
        case {"turns": [str(first), *_]}:
            # The file has no answers between the turns, so later turns make no sense.
            return [{"role": "user", "content": first}]
        case {"text": str(text)} | {"prompt": str(text)} if text.strip():
            return text
    raise Problem(f"{where} has no text in any of the known keys", _REMEDY)


def token_windows(
    samples: Sequence[Sample],
    encode: Callable[[Sample], list[int]],
    count: int,
    length: int,
) -> list[list[int]]:
    """Return at most `count` windows of `length` tokens; one shorter window if the text has no
    more."""
    stream = [token for sample in samples for token in encode(sample)]
    if len(stream) < LEAST_TOKENS:
        raise Problem(
            f"the calibration text has {len(stream)} tokens, but needs at least {LEAST_TOKENS}",
            f"add text; {count * length} tokens were requested",
        )
    length = min(length, len(stream))
    there = len(stream) // length
    taken = min(count, there)
    starts = [(index * there // taken) * length for index in range(taken)]
    return [stream[start : start + length] for start in starts]
