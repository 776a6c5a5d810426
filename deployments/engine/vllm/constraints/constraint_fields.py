"""The field of a request that constrains its answer, for error messages.

vLLM builds one constraint from `structured_outputs`, `response_format`, `text.format` and tools,
and does not keep its origin. So the client's fields are stored in addition. Sources:
`adjust_request` in vllm/parser/abstract_parser.py and vllm/tool_parsers/abstract_tool_parser.py,
`extract_structured_outputs` in vllm/entrypoints/openai/*/protocol.py of vLLM 0.32.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from deployments.engine.vllm.constraints.constraint_bounds import excess_of


@dataclass(frozen=True)
class Sent:
    """The client's constraints on an answer.

    `structured` is by the field of vLLM's StructuredOutputsParams; `format_field` has `schema` or
    `tag`, which is JSON. `tools` are the parameters of each tool by their field, None: it has none;
    `strict` are the fields of those that are strict, and contain `format_field` unless its format
    has `strict: false`; `chosen` is the field of the tool that must be called, if the request names
    it. `number` is that of the request.
    """

    structured: Mapping[str, Any]
    format_field: str = "response_format"
    schema: Any = None
    tag: str | None = None
    tools: Mapping[str, Any] | None = None
    chosen: str | None = None
    strict: frozenset[str] = frozenset()
    number: int = dataclasses.field(default_factory=partial(next, count()), compare=False)

    def schemas(self) -> Iterator[tuple[str, Any]]:
        """Yield the schemas and tags that the answer must match, with their fields. Those that are
        not strict do not count: a client does not rely on them."""
        for kind in ("json", "structural_tag"):
            yield f"structured_outputs.{kind}", self.structured.get(kind)
        of_format = ((self.format_field, one) for one in (self.schema, self.tag))
        for field, schema in (*of_format, *(self.tools or {}).items()):
            if field in self.strict:
                yield field, schema

    def field_of(self, kind: str, constraint: Any) -> str:
        """Return the field of a constraint; `kind` as in `structured`."""
        is_only_there = kind in ("choice", "regex", "grammar")  # and simplified since
        if kind in self.structured and (is_only_there or self.structured[kind] == constraint):
            return f"structured_outputs.{kind}"
        if constraint in (self.schema, self.tag):
            return self.format_field
        tools = self.tools or {}
        if self.chosen in tools:
            return str(self.chosen)
        for field, parameters in tools.items():
            if parameters == constraint or excess_of("json", parameters):
                return field
        if self.schema is not None and excess_of("json", self.schema):
            return self.format_field
        if len(tools) == 1:
            return next(iter(tools))
        return "tools" if tools else self.format_field


# Set by the task that serves a request.
current: ContextVar[Sent | None] = ContextVar("sent constraints", default=None)


def field_of(kind: str, constraint: Any) -> str:
    """Return `Sent.field_of` for the request that the current task serves."""
    sent = current.get() or Sent({kind: constraint})
    return sent.field_of(kind, constraint)


def remember_fields(state: Any) -> None:
    """Record the fields of each later request to the serving objects in the state of vLLM's
    application."""
    for api, method, read in (
        ("openai_serving_chat", "create_chat_completion", sent_to_chat),
        ("openai_serving_completion", "create_completion", sent_to_chat),
        ("openai_serving_responses", "create_responses", sent_to_responses),
        ("anthropic_serving_messages", "create_chat_completion", sent_to_messages),
    ):
        serving = getattr(state, api, None)  # the model may not have this API
        if serving is not None:
            setattr(serving, method, _remembering(getattr(serving, method), read))


def _remembering(
    create: Callable[..., Awaitable[Any]], read: Callable[[Any], Sent]
) -> Callable[..., Awaitable[Any]]:
    async def create_and_remember(request: Any, *args: Any, **kwargs: Any) -> Any:
        sent = read(request)  # vLLM writes the constraint of tools into the request
        current.set(sent)
        answer = await create(request, *args, **kwargs)
        return _stream(sent, answer) if isinstance(answer, AsyncGenerator) else answer

    return create_and_remember


async def _stream(sent: Sent, events: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield the same events: vLLM sends them in another task than that which created them."""
    current.set(sent)
    async with contextlib.aclosing(events):
        async for event in events:
            yield event


def sent_to_chat(request: Any) -> Sent:
    """Return the constraints of a ChatCompletionRequest or CompletionRequest."""
    schema = tag = strict = None
    if (asked := request.response_format) is not None:
        if asked.type == "json_schema" and asked.json_schema is not None:
            schema, strict = asked.json_schema.json_schema, asked.json_schema.strict
        elif asked.type == "structural_tag":
            tag = json.dumps(asked.model_dump(by_alias=True))
    functions = [getattr(tool, "function", None) for tool in getattr(request, "tools", None) or ()]
    tools = _tools(functions, ".function.parameters", _chosen(request))
    sent = Sent(_structured(request), "response_format", schema, tag, **tools)
    return sent if strict is False else _with_strict_format(sent)


def sent_to_messages(request: Any) -> Sent:
    """Return what the ChatCompletionRequest of vLLM for Anthropic's messages has."""
    sent = sent_to_chat(request)
    functions = [tool.function for tool in request.tools or ()]
    tools = _tools(functions, ".input_schema", _chosen(request))
    return _with_strict_format(replace(sent, format_field="output_config.format", **tools))


def sent_to_responses(request: Any) -> Sent:
    """Return the constraints of a ResponsesRequest."""
    asked = request.text.format if request.text is not None else None
    schema = getattr(asked, "schema_", None)
    tools = _tools(request.tools or (), ".parameters", _chosen(request))
    sent = Sent(_structured(request), "text.format", schema, None, **tools)
    return sent if getattr(asked, "strict", None) is False else _with_strict_format(sent)


def _with_strict_format(sent: Sent) -> Sent:
    return replace(sent, strict=sent.strict | {sent.format_field})


def _structured(request: Any) -> Mapping[str, Any]:
    params = request.structured_outputs
    fields = vars(params).items() if params is not None else ()
    return {name: value for name, value in fields if value is not None}


def _chosen(request: Any) -> str | None:
    """Return the name of the function that must be called."""
    choice = getattr(request, "tool_choice", None)
    named = getattr(choice, "function", choice)
    return getattr(named, "name", None)


def _tools(functions: Sequence[Any], field: str, name: str | None) -> dict[str, Any]:
    """Return the fields of `Sent` for tools: the field of each ends in `field`, and `name` is that
    of the chosen one."""
    found = {
        f"tools[{index}]{field}": function
        for index, function in enumerate(functions)
        if getattr(function, "parameters", None) is not None
    }
    chosen = [at for at, function in found.items() if name is not None and function.name == name]
    return {
        "tools": {at: function.parameters for at, function in found.items()},
        "strict": frozenset(at for at, one in found.items() if getattr(one, "strict", None)),
        "chosen": next(iter(chosen), None),
    }
