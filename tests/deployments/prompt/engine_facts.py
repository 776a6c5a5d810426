"""Facts of an engine that never was."""

from __future__ import annotations

from functools import cache
from typing import Any

from deployments.prompt import ChatTemplate, RendererFacts
from tests.deployments.prompt.models import small_tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def _tokenizer() -> str:
    return small_tokenizer().to_str()


def facts(template: str | None = CHATML, **changed: Any) -> RendererFacts:
    chat = None if template is None else ChatTemplate(template, "string")
    given: dict[str, Any] = {
        "tokenizer": _tokenizer(),
        "split_special_tokens": False,
        "special_tokens": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        "truncation_side": "left",
        "max_chars_per_token": 20,
        "max_model_len": 512,
        "template": chat,
        "tool_template": chat,
        "template_kwargs": {},
        "exclude_tools_when_tool_choice_none": False,
    }
    return RendererFacts(**{**given, **changed})
