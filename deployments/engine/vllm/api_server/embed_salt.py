"""The cache salt of Cohere's `/v2/embed`, which vLLM reads at its other paths only.

Without it tenants would find each other's cached prompts there. Source:
vllm/entrypoints/pooling/{base/serving,embed/io_processor}.py of vLLM 0.32.
"""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.pooling.embed.protocol import CohereEmbedRequest

SALT = "cache_salt"


def keep_salt(embedding: Any) -> None:
    """Have `/v2/embed` compute with the `cache_salt` of its body, which the gateway sets.

    `embedding`: vLLM's ServingEmbedding, or None where the model has no such API.
    """
    if embedding is None:
        return
    begin = embedding._init_ctx

    async def begin_with_salt(io_processor: Any, request: Any, raw_request: Any = None) -> Any:
        context = await begin(io_processor, request, raw_request)
        if isinstance(request, CohereEmbedRequest) and raw_request is not None:
            body = await raw_request.json()  # vLLM has read it already
            if salt := body.get(SALT):
                context.prompt_extras = {**(context.prompt_extras or {}), SALT: salt}
        return context

    embedding._init_ctx = begin_with_salt
