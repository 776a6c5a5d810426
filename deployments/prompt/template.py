"""A compiled chat template, in the Jinja dialect that model authors use.

The dialect is that of transformers' `apply_chat_template`
(transformers/utils/chat_template_utils.py). It has a sandbox in which templates cannot change their
input, and blocks without blank lines. It adds break, continue, `{% generation %}`,
`raise_exception` and `strftime_now`, and its `tojson` does not escape HTML. Clock and time zone are
those of this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from deployments.prompt.unknowable import Unknowable

Message = Mapping[str, Any]

# transformers' mark: a template that shows a message twice leaves it in the prompt. Its last space
# shows whether the template strips text.
_END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "

_NUMBERS_OF_A_LOOP = frozenset(("first", "last", "index", "index0"))


class Template:
    """An immutable template, safe to use from many threads.

    Raises jinja2.TemplateError if the text is not a template, or rejects its input.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        environment = _environment()
        self._template = environment.from_string(text)
        self._special_tokens = dict(special_tokens)
        self._mentions_content = "content" in text
        self.variables = meta.find_undeclared_variables(environment.parse(text))
        self.knows_developers = '"developer"' in text or "'developer'" in text

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, str]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        """Return the prompt's text. `kwargs` other than the template's variables are ignored."""
        if not messages:
            raise Unknowable("no messages")
        asked = {name: value for name, value in kwargs.items() if name in self.variables}
        return self._template.render(
            {
                **self._special_tokens,
                **asked,
                "messages": messages,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
            }
        )

    def render_open(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, str]] | None,
        kwargs: Mapping[str, Any],
    ) -> str:
        """Return the prompt's text up to the end of the last message's content, so that it can
        continue."""
        if not messages or not self._mentions_content:
            raise Unknowable("no message to continue")
        content, marked = _with_end_mark(messages[-1].get("content"))
        last = {**messages[-1], "content": marked}
        text = self.render([*messages[:-1], last], tools, documents, False, kwargs)
        mark = text.rfind(_END_MARK.strip())
        if mark < 0 or content.strip() not in text:
            raise Unknowable("the template does not show the message to continue")
        kept = text[:mark]
        return kept if text.startswith(_END_MARK, mark) else kept.rstrip()


def _with_end_mark(content: Any) -> tuple[str, Any]:
    """Return the text that continues, and the content with that text marked."""
    if isinstance(content, str):
        return content, content + _END_MARK
    if isinstance(content, list):
        for index in reversed(range(len(content))):
            part = content[index]
            if "text" in part:
                marked = {**part, "text": part["text"] + _END_MARK}
                return part["text"], [*content[:index], marked, *content[index + 1 :]]
    raise Unknowable("no text to continue")


class _Generation(Extension):
    """The tag `{% generation %}` marks the model's text. The marks are not used, but the tag is a
    scope."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


class _Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox that does not check each of hundreds of messages for access to its index."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is LoopContext and attribute in _NUMBERS_OF_A_LOOP:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _environment() -> Environment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(format: str) -> str:  # templates may name the argument
    return datetime.now().strftime(format)
