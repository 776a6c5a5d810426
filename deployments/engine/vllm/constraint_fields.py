"""The field of a request that constrains its answer, for error messages.

vLLM builds one constraint from `structured_outputs`, `response_format`, `text.format` and tools,
and does not keep its origin. So the client's fields are stored in addition. Sources:
`adjust_request` in vllm/parser/abstract_parser.py and vllm/tool_parsers/abstract_tool_parser.py,
`extract_structured_outputs` in vllm/entrypoints/openai/*/protocol.py of vLLM 0.32.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from deployments.engine.vllm.constraint_bounds import excess_of


@dataclass(frozen=True)
class Sent:
    """The client's constraints on an answer.

    `structured` is by the field of vLLM's StructuredOutputsParams; `format_field` has `schema` or
    `tag`, which is JSON. `tools` are the parameters of each tool by their field, None: it has none;
    `chosen` is the field of the tool that must be called, if the request names it.
    """

    structured: Mapping[str, Any]
    format_field: str = "response_format"
    schema: Any = None
    tag: str | None = None
    tools: Mapping[str, Any] | None = None
    chosen: str | None = None

    def field_of(self, kind: str, constraint: Any) -> str:
        """Return the field of a constraint; `kind` as in `structured`."""
        if self.structured.get(kind) == constraint:
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
    schema = tag = None
    if (asked := request.response_format) is not None:
        if asked.type == "json_schema" and asked.json_schema is not None:
            schema = asked.json_schema.json_schema
        elif asked.type == "structural_tag":
            tag = json.dumps(asked.model_dump(by_alias=True))
    functions = [getattr(tool, "function", None) for tool in getattr(request, "tools", None) or ()]
    tools, chosen = _tools(functions, ".function.parameters", _chosen(request))
    return Sent(_structured(request), "response_format", schema, tag, tools, chosen)


def sent_to_messages(request: Any) -> Sent:
    """Return what the ChatCompletionRequest of vLLM for Anthropic's messages has."""
    sent = sent_to_chat(request)
    functions = [tool.function for tool in request.tools or ()]
    tools, chosen = _tools(functions, ".input_schema", _chosen(request))
    return replace(sent, format_field="output_config.format", tools=tools, chosen=chosen)


def sent_to_responses(request: Any) -> Sent:
    """Return the constraints of a ResponsesRequest."""
    asked = request.text.format if request.text is not None else None
    schema = getattr(asked, "schema_", None)
    tools, chosen = _tools(request.tools or (), ".parameters", _chosen(request))
    return Sent(_structured(request), "text.format", schema, None, tools, chosen)


def _structured(request: Any) -> Mapping[str, Any]:
    params = request.structured_outputs
    fields = vars(params).items() if params is not None else ()
    return {name: value for name, value in fields if value is not None}


def _chosen(request: Any) -> str | None:
    """Return the name of the function that must be called."""
    choice = getattr(request, "tool_choice", None)
    named = getattr(choice, "function", choice)
    return getattr(named, "name", None)


def _tools(
    functions: Sequence[Any], field: str, name: str | None
) -> tuple[Mapping[str, Any], str | None]:
    """Return the parameters of all functions by their field, and the field of that with this
    name."""
    found = {
        f"tools[{index}]{field}": function
        for index, function in enumerate(functions)
        if getattr(function, "parameters", None) is not None
    }
    chosen = [at for at, function in found.items() if name is not None and function.name == name]
    parameters = {at: function.parameters for at, function in found.items()}
    return parameters, next(iter(chosen), None)
