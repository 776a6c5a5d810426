"""Real clients hold conversations of several turns, with tools, on a real engine.

The answers make no sense, so the call of a tool and its result are part of what a client sends.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.environments import environment
from tests.every_field.serving import Served
from tests.fakes.engine import MODEL
from tests.fakes.front import KEY
from tests.npm_clients import turns

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
PYDANTIC_AI = "pydantic-ai-slim[anthropic,openai]==2.68.0"
LLAMA_INDEX = "llama-index-llms-openai-like==0.8.1"
INSTRUCTOR = "instructor==1.17.0"


def read(served: Served, requirement: str, script: str) -> Any:
    """Run a client's script in an environment with the client. Skip the test if pip is offline."""
    try:
        python = environment(requirement) / "python"
    except subprocess.CalledProcessError:
        pytest.skip(f"{requirement} cannot be installed: is the package index offline?")
    command = [str(python), str(HERE / script), f"{served.url}/v1", KEY, MODEL]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_pydantic_ai_holds_a_conversation_over_every_api(served: Served) -> None:
    found = read(served, PYDANTIC_AI, "turns_of_pydantic_ai.py")
    assert found.keys() == {"chat", "responses", "messages"}
    # a call, its result with the next question, and one more: each with an answer
    assert min(found.values()) >= 6


def test_llama_index_holds_a_conversation_and_reads_a_stream(served: Served) -> None:
    found = read(served, LLAMA_INDEX, "turns_of_llama_index.py")
    assert found["roles"] == ["user", "assistant", "tool", "assistant", "user"]
    assert found["streamed"]


def test_instructor_reads_a_forced_call_in_every_turn(served: Served) -> None:
    cities = read(served, INSTRUCTOR, "turns_of_instructor.py")
    assert len(cities) == 3 and {*cities} <= {"Rome", "Oslo", "incomplete"}


async def test_the_vercel_ai_sdk_continues_after_a_call_over_every_api(served: Served) -> None:
    found = await asyncio.wait_for(turns(f"{served.url}/v1", KEY, MODEL), 200)
    expected = ["user", "assistant: tool-call", "tool: tool-result", "assistant", "user"]
    kinds = {api: [kind.removesuffix(": text") for kind in said] for api, said in found.items()}
    assert kinds.keys() == {"chat", "responses", "messages"}
    assert {*map(tuple, kinds.values())} == {(*expected, "assistant")}
