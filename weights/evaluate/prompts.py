"""Files of prompts and of texts.

A file whose name ends in .jsonl holds one object a line, with one of these keys:

    turns      a list of user messages, as in MT-bench; only the first is used, since each of
               the others follows an answer that is not in the file
    messages   a conversation, each message with a role and a content
    prompt     one user message
    text       a document, or, as a prompt, one user message

Any other file is plain text: one prompt per line, or one document. A fault of a file is a `Problem`
that names the file and the line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.errors import Problem

Conversation = list[dict[str, str]]
"""Messages with `role` and `content`, to be answered."""

KEYS = ("turns", "messages", "prompt", "text")


def read_prompts(path: Path) -> list[Conversation]:
    """Return every prompt of the file, in its order; at least one."""
    lines = _content(path).splitlines()
    if path.suffix == ".jsonl":
        documents = [_document(path, n, line) for n, line in enumerate(lines, 1) if line.strip()]
        prompts = [_asked(text) if isinstance(text, str) else text for text in documents]
    else:
        prompts = [_asked(line.strip()) for line in lines if line.strip()]
    if not prompts:
        raise Problem(f"{path} contains no prompt", "pass a file with one prompt per line")
    return prompts


def read_texts(path: Path) -> list[str | Conversation]:
    """Return every text of the file: documents unchanged, the others as conversations."""
    content = _content(path)
    if path.suffix != ".jsonl":
        return [content]
    lines = content.splitlines()
    return [_document(path, n, line) for n, line in enumerate(lines, 1) if line.strip()]


def _content(path: Path) -> str:
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Problem(f"{path} is not UTF-8 text", "pass a text or .jsonl file") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Problem(f"{path} cannot be read: {reason}", "pass a readable file") from error
    if not content.strip():
        raise Problem(f"{path} is empty", "pass a file that contains text")
    return content


def _document(path: Path, number: int, line: str) -> str | Conversation:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise Problem(
            f"{path}:{number} is not JSON: {error}", "write one object per line"
        ) from None
    match record:
        case {"turns": [str(first), *_]} if first.strip():
            return _asked(first)
        case {"messages": [_, *_] as messages} if all(_is_message(m) for m in messages):
            return [{"role": m["role"], "content": m["content"]} for m in messages]
        case {"prompt": str(prompt)} if prompt.strip():
            return _asked(prompt)
        case {"text": str(text)} if text.strip():
            return text
    found = ", ".join(map(str, record)) if isinstance(record, dict) else type(record).__name__
    raise Problem(
        f"{path}:{number} has no text (its keys: {found or 'nothing'})",
        f"give each line a non-empty value of one of {', '.join(KEYS)}",
    )


def _is_message(message: Any) -> bool:
    match message:
        case {"role": str(), "content": str()}:
            return True
    return False


def _asked(text: str) -> Conversation:
    return [{"role": "user", "content": text}]
