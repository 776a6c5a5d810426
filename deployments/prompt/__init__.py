"""Prompts as an engine will see them: the gateway computes the token ids of a request itself.

The engine exports what its answer depends on (`RendererFacts`), and `PromptTokens` rebuilds it
from that with neither vLLM, transformers nor torch. It answers exactly or not at all: None for
whatever it does not know for certain, and no request fails for it.
"""

from deployments.prompt.facts import ChatTemplate, MessagesFacts, RendererFacts
from deployments.prompt.tokenizer import PromptPieces
from deployments.prompt.tokens import PromptTokens

__all__ = ["ChatTemplate", "MessagesFacts", "PromptPieces", "PromptTokens", "RendererFacts"]
