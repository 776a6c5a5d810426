"""The token ids of a request's prompt, as the engine will compute them.

Source: vllm/renderers/online_renderer.py and the `build_*_params` of vLLM 0.32's requests. An
object is created once per digest of facts, and is then safe to use from many threads. It
returns None whenever the tokens are uncertain; for a request that the engine rejects, the result
may be anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from deployments.prompt import chat, messages, responses
from deployments.prompt.conversation import conversation_of
from deployments.prompt.facts import ChatTemplate, RendererFacts
from deployments.prompt.template import Template
from deployments.prompt.template_kwargs import template_kwargs
from deployments.prompt.tokenizer import Cut, PromptPieces, PromptTokenizer
from deployments.prompt.unknowable import (
    Unknowable,
    flag_of,
    mapping_of,
    whole_number_of,
)
from deployments.wire.inference_paths import PromptForm, inference_path
from deployments.wire.items.completed import completed

logger = logging.getLogger(__name__)

# vLLM's default for /v1/completions; it matters only if a prompt is truncated to fit.
_COMPLETION_MAX_TOKENS = 16

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Asked:
    """A request's prompts, all texts or all token ids, before truncation."""

    texts: list[str]
    ids: list[list[int]]
    add_special_tokens: bool
    cut: Cut


class PromptTokens:
    """The way of one engine from a request to tokens.

    Raises ValueError if the facts have no tokenizer; takes up to a second for a large one.
    `elsewhere` is entered for work that releases the interpreter lock.
    """

    def __init__(
        self,
        facts: RendererFacts,
        elsewhere: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._facts = facts
        self._template = _compiled(facts.template, facts)
        self._tool_template = _compiled(facts.tool_template, facts)
        self._tokenizer = PromptTokenizer(facts, elsewhere)
        self._readers: Mapping[PromptForm, Callable[[Mapping[str, Any]], _Asked]] = {
            "chat": self._chat,
            "completion": self._completion,
            "response": self._response,
            "message": self._message,
        }

    @property
    def digest(self) -> str:
        """The digest of the engine's facts."""
        return self._facts.digest

    def token_ids(self, path: str, fields: Mapping[str, Any]) -> list[list[int]] | None:
        """Return one list of ids for each prompt of the request; None if they are unknown.

        `fields` is the parsed body. Takes about 2 ms for 1,000 tokens; never raises.
        """
        return self._unless_unknowable(path, fields, self._encoded)

    def read(
        self,
        path: str,
        fields: Mapping[str, Any],
        take: Callable[[PromptPieces | list[int]], Result],
    ) -> list[Result] | None:
        """Return the result of `take` for each prompt; None if its tokens are unknown.

        A prompt is passed in pieces that are not encoded yet, or as its ids. Raises nothing,
        regardless of `take`.
        """

        def taken(asked: _Asked) -> list[Result]:
            return [take(prompt) for prompt in self._in_pieces(asked)]

        return self._unless_unknowable(path, fields, taken)

    def _unless_unknowable(
        self, path: str, fields: Mapping[str, Any], made_of: Callable[[_Asked], list[Result]]
    ) -> list[Result] | None:
        asked = self._readers.get(inference_path(path).prompt_form)
        if asked is None:
            return None
        try:
            return made_of(asked(completed(path, fields)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the Rust tokenizer is not an Exception
            # only by its type, because a message may quote the prompt
            why = str(error) if isinstance(error, Unknowable) else type(error).__name__
            logger.debug("failed to make the tokens of a prompt for %s: %s", path, why)
            return None

    def _encoded(self, asked: _Asked) -> list[list[int]]:
        if asked.ids:
            return [self._tokenizer.fit(ids, asked.cut) for ids in asked.ids]
        return self._tokenizer.encode(asked.texts, asked.add_special_tokens, asked.cut)

    def _in_pieces(self, asked: _Asked) -> Sequence[PromptPieces | list[int]]:
        if asked.ids or not self._tokenizer.takes_pieces(asked.add_special_tokens, asked.cut):
            return self._encoded(asked)
        return self._tokenizer.in_pieces(asked.texts)

    def _chat(self, fields: Mapping[str, Any]) -> _Asked:
        text = self._rendered(
            messages=chat.messages_of(fields),
            tools=chat.tools_of(fields, self._facts.exclude_tools_when_tool_choice_none),
            documents=chat.documents_of(fields),
            add_generation_prompt=flag_of(fields, "add_generation_prompt", True),
            continue_final_message=flag_of(fields, "continue_final_message", False),
            kwargs=template_kwargs(
                self._facts.template_kwargs,
                mapping_of(fields, "chat_template_kwargs"),
                fields.get("reasoning_effort"),
            ),
        )
        max_tokens = whole_number_of(fields, "max_completion_tokens")
        if max_tokens is None:
            max_tokens = whole_number_of(fields, "max_tokens")
        cut = self._cut(fields, max_tokens or 0)
        return _Asked([text], [], flag_of(fields, "add_special_tokens", False), cut)

    def _message(self, fields: Mapping[str, Any]) -> _Asked:
        if self._facts.messages is None:
            raise Unknowable("messages of an engine that does not report how it reads them")
        return self._chat(messages.as_chat(fields, self._facts.messages))

    def _response(self, fields: Mapping[str, Any]) -> _Asked:
        asked = mapping_of(fields, "chat_template_kwargs")
        if any(value in (None, "auto") for value in asked.values()):
            # vLLM merges these twice here, and the result depends on how
            raise Unknowable("an unset chat_template_kwarg")
        continued = responses.continues_last_message(fields)
        text = self._rendered(
            messages=responses.messages_of(fields),
            tools=responses.tools_of(fields, self._facts.exclude_tools_when_tool_choice_none),
            documents=None,
            add_generation_prompt=not continued,
            continue_final_message=continued,
            kwargs=template_kwargs(
                self._facts.template_kwargs, asked, mapping_of(fields, "reasoning").get("effort")
            ),
        )
        max_tokens = whole_number_of(fields, "max_output_tokens") or 0
        whole = fields.get("truncation", "disabled") == "disabled"
        cut = Cut() if whole else Cut(self._longest_cut(max_tokens))
        return _Asked([text], [], True, cut)

    def _completion(self, fields: Mapping[str, Any]) -> _Asked:
        if any(fields.get(name) is not None for name in ("prompt_embeds", "suffix")):
            raise Unknowable("a prompt that is more than text")
        max_tokens = whole_number_of(fields, "max_tokens")
        cut = self._cut(fields, _COMPLETION_MAX_TOKENS if max_tokens is None else max_tokens)
        add_special_tokens = flag_of(fields, "add_special_tokens", True)
        prompts = fields.get("prompt")
        if isinstance(prompts, str) or _is_token_ids(prompts):
            prompts = [prompts]
        if not isinstance(prompts, list) or not prompts:
            raise Unknowable("a prompt of another form")
        if all(isinstance(prompt, str) for prompt in prompts):
            return _Asked(prompts, [], add_special_tokens, cut)
        if all(_is_token_ids(prompt) for prompt in prompts):
            return _Asked([], prompts, add_special_tokens, cut)
        raise Unknowable("a prompt of another form")

    def _rendered(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        documents: list[Any] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        chosen = self._template if tools is None else self._tool_template
        if chosen is None:
            raise Unknowable("no chat template")
        if len(messages) > self._facts.max_model_len:
            raise Unknowable("more messages than tokens")
        template, content_format = chosen
        conversation = conversation_of(messages, content_format, template.knows_developers)
        # before the prompt is rendered: a template may take seconds for megabytes
        self._tokenizer.check_length(sum(len(str(of.get("content") or "")) for of in conversation))
        if not continue_final_message:
            return template.render(conversation, tools, documents, add_generation_prompt, kwargs)
        if add_generation_prompt:
            raise Unknowable("a message to continue, and another to begin")
        return template.render_open(conversation, tools, documents, kwargs)

    def _cut(self, fields: Mapping[str, Any], max_output_tokens: int) -> Cut:
        length, side = whole_number_of(fields, "truncate_prompt_tokens"), None
        if fields.get("truncation_side") in ("left", "right"):
            side = fields["truncation_side"]
        elif fields.get("truncation_side") is not None:
            raise Unknowable("truncation_side of another form")
        return Cut(self._longest_cut(max_output_tokens) if length == -1 else length, side)

    def _longest_cut(self, max_output_tokens: int) -> int:
        """Return the most prompt tokens that leave room for one output token."""
        return self._facts.max_model_len - (1 if max_output_tokens else 0)


def _compiled(template: ChatTemplate | None, facts: RendererFacts) -> tuple[Template, str] | None:
    if template is None:
        return None
    try:
        return Template(template.text, facts.special_tokens), template.content_format
    except Exception as error:  # any error: the engine has the same; completions still work
        logger.warning("failed to compile an engine's chat template: %s", type(error).__name__)
        return None


def _is_token_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)
