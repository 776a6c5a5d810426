"""Requests in spellings that the APIs allow and vLLM does not expect: name -> path and body."""

from __future__ import annotations

from typing import Any

from tests.deployments.prompt.message_shapes import USED, assistant, messages, result, user
from tests.deployments.prompt.shapes import (
    CALL,
    RESULT,
    SHORT_TOOL,
    USER,
    Request,
    calling,
    chat,
    response,
    text,
)

ASKED, AGAIN = {"role": "user", "content": "Hello"}, {"role": "user", "content": "And?"}
CALLED = {"type": "function_call", "call_id": "1", "name": "now", "arguments": "{}"}


def assistant_message(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(parts), **more}


def output(of: str) -> dict[str, Any]:
    return {"type": "output_text", "text": of}


def conversation(*items: dict[str, Any], **fields: Any) -> Request:
    return response([ASKED, *items, AGAIN], **fields)


def thought(*texts: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "reasoning_text", "text": each} for each in texts]
    return {"type": "reasoning", "content": parts, **more}


REFUSED = {"type": "refusal", "refusal": "I can not."}
SUMMARIES = [{"type": "summary_text", "text": each} for each in ("first", "second")]
TEXTS = [{"type": "input_text", "text": each} for each in ("21", "degrees")]

SPELLED: dict[str, Request] = {
    "an answer without a type": conversation(assistant_message(output("Hi"))),
    "an answer of two parts without a type": conversation(
        assistant_message(output("Hi, "), output("there"))
    ),
    "an answer that is a refusal": conversation(assistant_message(REFUSED)),
    "a refusal behind a text": conversation(
        assistant_message(output("Hm. "), REFUSED, type="message")
    ),
    "an empty answer": conversation(assistant_message()),
    "an empty answer with a type": conversation(
        assistant_message(type="message", status="completed")
    ),
    "an answer of input text": conversation(
        assistant_message({"type": "input_text", "text": "Hi"})
    ),
    "an answer with nulls": conversation(
        assistant_message(
            {**output("Hi"), "annotations": None, "logprobs": None}, id=None, status=None
        )
    ),
    "an unfinished answer without a type": response(
        [ASKED, assistant_message(output("Hi"), status="incomplete")]
    ),
    "an unfinished answer that is a string": response(
        [ASKED, {"role": "assistant", "content": "Hi", "status": "in_progress"}]
    ),
    "a question with nulls": response([{**ASKED, "id": None, "status": None, "type": None}]),
    "a thought of two parts": conversation(
        thought("one", "two", summary=[]), assistant_message(output("Hi"))
    ),
    "a thought without a summary": conversation(thought("one"), assistant_message(output("Hi"))),
    "a thought with two summaries": conversation(
        {"type": "reasoning", "id": "r", "summary": SUMMARIES, "encrypted_content": None}
    ),
    "a thought of nothing": conversation({"type": "reasoning"}),
    "a result of texts": conversation(
        CALLED, {"type": "function_call_output", "call_id": "1", "output": TEXTS}
    ),
    "a result with nulls": conversation(
        {**CALLED, "id": None, "status": None},
        {"type": "function_call_output", "call_id": "1", "output": "x", "id": None, "status": None},
    ),
    "a result as it came": conversation(
        {**CALLED, "id": "fc_1", "status": "completed"},
        {
            "type": "function_call_output",
            "call_id": "1",
            "output": TEXTS,
            "id": "fo_1",
            "status": "completed",
        },
    ),
    "settings of null": response(
        "Hello",
        text={"format": None},
        reasoning=None,
        service_tier=None,
        background=None,
        tools=None,
    ),
    "a function without parameters": response("Hello", tools=[{"type": "function", "name": "now"}]),
    "a function of no schema": response(
        "Hello", tools=[{"type": "function", "name": "now", "parameters": None, "strict": None}]
    ),
    "a chat's refusal": chat(USER, {"role": "assistant", "content": [REFUSED]}, USER),
    "a chat's refusal beside a text": chat(
        USER, {"role": "assistant", "content": "Hm.", "refusal": "I can not."}, USER
    ),
    "a chat's refusal beside parts": chat(
        USER, {"role": "assistant", "content": text("Hm."), "refusal": "I can not."}, USER
    ),
    "a chat's refusal instead of a text": chat(
        USER, {"role": "assistant", "content": None, "refusal": "I can not."}, USER
    ),
    "a chat with nulls": chat(
        {**USER, "name": None, "tool_calls": None},
        {"role": "assistant", "content": text("Hi", cache_control=None), "reasoning": None},
        USER,
        n=None,
        response_format=None,
        stream_options=None,
    ),
    "a call with nulls": chat(*calling({**CALL, "index": None})[:2], {**RESULT, "name": None}),
    "a chat's function without parameters": chat(USER, tools=[SHORT_TOOL]),
    "a chat's function of null": chat(
        USER, tools=[{"type": "function", "function": {"name": "now", "parameters": None}}]
    ),
    "a failed result of blocks": messages(
        USER, assistant(USED), user(result(text("no", "way"), is_error=True))
    ),
    "a failed result of nothing": messages(USER, assistant(USED), user(result("", is_error=True))),
    "a result that did not fail": messages(
        USER, assistant(USED), user(result("yes", is_error=False))
    ),
    "blocks with nulls": messages(
        user({"type": "text", "text": "a", "citations": None, "cache_control": None})
    ),
}
