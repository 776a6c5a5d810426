"""Prompts as an engine sees them: the gateway computes the token ids of a request itself.

The engine exports the facts on which the result depends (`RendererFacts`). `PromptTokens` rebuilds
the computation from them without vLLM, transformers or torch. The result is exact or None: anything
uncertain gives None, and no request fails because of it.
"""

from deployments.prompt.facts import ChatTemplate, MessagesFacts, RendererFacts
from deployments.prompt.tokenizer import PromptPieces
from deployments.prompt.tokens import PromptTokens

__all__ = ["ChatTemplate", "MessagesFacts", "PromptPieces", "PromptTokens", "RendererFacts"]
