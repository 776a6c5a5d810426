"""Identifies a conversation by its beginning, which each of its requests repeats.

Clients send the whole conversation with each request. Its system prompt and first user message stay
the same. Two conversations with the same beginning count as one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from deployments.prompt.conversation import BILLING_LINE
from deployments.wire.inference_paths import COMPLETIONS, inference_path

# The beginning of a prompt without messages, whose end grows.
_PROMPT_CHARS = 256
_BEFORE_MESSAGES = ("system", "instructions")
_NAME_BYTES = 16


def conversation_of(
    secret: bytes, path: str, tenant: str, fields: Mapping[str, Any], session: str | None
) -> bytes | None:
    """Return the name of a tenant's conversation, 16 bytes; None if the request belongs to none.

    Without `secret`, a guess cannot be tested. `session`: the client's name for it, from a header.
    Never raises.
    """
    beginning: Any = session
    if session is None:
        api = inference_path(path)
        if not api.generates or api.is_form:
            return None
        beginning = _beginning(path, fields)
    named = json.dumps([tenant, session is None, beginning], sort_keys=True, default=str)
    text = named.encode(errors="surrogatepass")
    return blake2b(text, digest_size=_NAME_BYTES, key=secret).digest()


def _beginning(path: str, fields: Mapping[str, Any]) -> Any:
    if path == COMPLETIONS:
        prompt = fields.get("prompt")
        return prompt[:_PROMPT_CHARS] if isinstance(prompt, str | list) else prompt
    before = [_without_billing(fields.get(name)) for name in _BEFORE_MESSAGES]
    messages = fields.get("messages")
    if messages is None:
        messages = fields.get("input")
    if not isinstance(messages, list):
        return [*before, messages]
    for number, message in enumerate(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            return [*before, messages[: number + 1]]
    return [*before, messages[:1]]


def _without_billing(system: Any) -> Any:
    if not isinstance(system, list):
        return system
    texts = (block.get("text") if isinstance(block, Mapping) else None for block in system)
    return [
        block
        for block, text in zip(system, texts, strict=True)
        if not (isinstance(text, str) and text.startswith(BILLING_LINE))
    ]
