"""Ids and creation time of a resumed answer, which stay the same.

Those of a chat and of a completion are its request's. A response draws them at random, one for
itself and one for each of its items, and repeats them in its last events. Parsers do the same for
calls of tools, and Anthropic's messages for signatures of thoughts. Sources, of vLLM 0.32:
vllm/entrypoints/openai/responses/, `make_tool_call_id` in vllm/renderers/chat_utils.py,
`created_time` in vllm/entrypoints/openai/*/serving.py.
"""

from __future__ import annotations

import sys
import time
from functools import cache

from vllm import envs
from vllm.entrypoints.openai.chat_completion import serving as chat_serving
from vllm.entrypoints.openai.completion import serving as completion_serving
from vllm.entrypoints.openai.responses import serving as responses_serving
from vllm.utils import random_uuid

from deployments.engine.vllm.api_server.anthropic_messages import keep_signatures
from deployments.wire import resumable

_DRAW_IDS = ("vllm.entrypoints.openai.responses", "vllm.renderers.", "vllm.tool_parsers.")


def why_no_responses(serving: responses_serving.OpenAIServingResponses | None) -> str | None:
    """Return why another engine could not resume responses of vLLM's `serving`; None if it
    could."""
    if serving is None:
        return "the model has no responses"
    reasons = {
        "its server keeps responses": serving.enable_store,
        "its server may call tools and ask the engine again": serving.use_harmony
        or envs.VLLM_USE_EXPERIMENTAL_PARSER_CONTEXT,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@cache
def keep_ids() -> None:
    """Install, once vLLM has loaded the modules that build its answers."""
    for module in (chat_serving, completion_serving, responses_serving):
        module.time = _Clock
    for name, module in list(sys.modules.items()):
        if name.startswith(_DRAW_IDS) and getattr(module, "random_uuid", None) is random_uuid:
            vars(module)["random_uuid"] = _id
    keep_signatures(_id)


def _id() -> str:
    exchange = resumable.current.get()
    return str(random_uuid()) if exchange is None else exchange.next_id()


class _Clock:
    """A replacement for the module `time`, of which they use only `time`."""

    @staticmethod
    def time() -> float:
        exchange = resumable.current.get()
        known = exchange.known if exchange else None
        return known.created if known and known.created else time.time()
