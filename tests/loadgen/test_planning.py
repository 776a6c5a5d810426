"""What is sent says what the workload or the trace says, and belongs to one run alone."""

from __future__ import annotations

from typing import Any

from loadgen.planning import RequestForm, of_conversations, of_trace
from loadgen.workloads import conversations
from simulator.traces import Request, Trace

FORM = RequestForm("small", "run-1", 64)


def bodies(form: RequestForm, workload: str) -> list[Any]:
    talks = conversations(workload, 1, 10.0)
    return [r.body() for session in of_conversations(talks, form) for r in session.requests]


def test_every_prompt_starts_with_the_name_of_its_run() -> None:
    for workload in ("multi_turn", "agents"):
        for body in bodies(FORM, workload):
            assert body["messages"][0]["content"].startswith("run-1 ")
            assert not body["messages"][-1]["content"].startswith("run-1 ")


def test_a_request_is_streamed_and_counted_with_the_given_length() -> None:
    body = bodies(FORM, "short")[0]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("small", 64, True)
    assert body["stream_options"] == {"include_usage": True}
    assert "tools" not in body


def test_agent_requests_include_their_tools_and_tool_calls() -> None:
    last = bodies(FORM, "agents")[-1]
    assert last["tools"]
    assert last["tool_choice"] == "none"
    assert {message["role"] for message in last["messages"]} >= {"assistant", "tool"}


def test_fields_are_added_or_removed() -> None:
    form = RequestForm("small", "run-1", 64, {"ignore_eos": None, "temperature": None, "top_p": 1})
    body = bodies(form, "short")[0]
    assert body["top_p"] == 1
    assert not {"ignore_eos", "temperature"} & body.keys()


def prompts(scale: float = 1.0) -> list[list[str]]:
    requests = (
        Request(0.0, 25, 3, (1, 2)),
        Request(1.0, 20, 3, (1, 2)),
        Request(2.0, 25, 3, (1, 3)),
        Request(3.0, 7, 30),
        Request(4.0, 7, 30),
    )
    sessions = of_trace(Trace("mine", requests, 5.0, block_tokens=10), FORM, scale)
    assert [session.arrives_at for session in sessions] == [0.0, 1.0, 2.0, 3.0, 4.0]
    made = [session.requests[0].body() for session in sessions]
    assert [body["max_tokens"] for body in made] == [
        max(1, round(n * scale)) for n in (3, 3, 3, 30, 30)
    ]
    return [body["messages"][0]["content"].split()[1:] for body in made]


def test_prompts_of_a_trace_keep_their_lengths_and_shared_blocks() -> None:
    first, same, other, lone, another = prompts()
    assert [len(prompt) for prompt in prompts()] == [25, 20, 25, 7, 7]
    assert first[:20] == same
    assert first[:10] == other[:10]
    assert first[10:20] != other[10:20]
    assert first[20:] != other[20:]
    assert lone != another


def test_scaled_down_prompts_share_the_same_prefixes() -> None:
    first, same, other, lone, _ = prompts(scale=0.4)
    assert (len(first), len(same), len(lone)) == (10, 8, 3)
    assert first[:8] == same
    assert first[:4] == other[:4]
