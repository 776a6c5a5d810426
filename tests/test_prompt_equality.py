"""A gateway's token ids are vLLM's own, for every shape of request, template and tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deployments.prompt import PromptTokens, RendererFacts
from tests.deployments.prompt import models, templates
from tests.deployments.prompt.all_shapes import KNOWN, UNKNOWN
from tests.deployments.prompt.random_chats import random_chat
from tests.deployments.prompt.shapes import CHAT, READ, Request

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[1]
TOOLS_ON = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
RANDOM_CHATS = 16  # for each setup, others each time

# name -> model and engine arguments in addition to max_model_len
SETUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "the embedded model": ("embedded", {}),
    "the embedded model with tools": ("embedded", TOOLS_ON),
    "tools": ("small", {"chat_template": templates.TOOLS, **TOOLS_ON}),
    "tools, in parts": (
        "small",
        {
            "chat_template": templates.PARTS + templates.DATED,
            "chat_template_content_format": "openai",
            **TOOLS_ON,
        },
    ),
    "a date": ("small", {"chat_template": templates.DATED, **TOOLS_ON}),
    "thinking": (
        "small",
        {"chat_template": templates.THINKING, "reasoning_parser": "qwen3", **TOOLS_ON},
    ),
    "thinking off": (
        "small",
        {
            "chat_template": templates.THINKING,
            "default_chat_template_kwargs": {"enable_thinking": False, "mood": "calm"},
        },
    ),
    "parts": ("small", {"chat_template": templates.PARTS, **TOOLS_ON}),
    "parts as a string": (
        "small",
        {"chat_template": templates.PARTS, "chat_template_content_format": "string"},
    ),
    "marked answers": ("small", {"chat_template": templates.MARKED, **TOOLS_ON}),
    "documents": (
        "small",
        {
            "chat_template": templates.DOCUMENTS + templates.TOOLS,
            "default_chat_template_kwargs": {"style": "terse"},
            "exclude_tools_when_tool_choice_none": True,
            **TOOLS_ON,
        },
    ),
    "an awkward template": ("small", {"chat_template": templates.AWKWARD, **TOOLS_ON}),
    "vLLM's own ChatML": ("small", {"chat_template": "template_chatml.jinja"}),
    "a trusted request template": ("small", {"trust_request_chat_template": True}),
    "a token before and after": ("with_bos", {"chat_template": templates.DATED, **TOOLS_ON}),
    "SentencePiece": ("with_unigram", {"chat_template": templates.TOOLS, **TOOLS_ON}),
    "templates with names": ("with_named_templates", TOOLS_ON),
    "one template over names": (
        "with_named_templates",
        {"chat_template": templates.TOOLS, **TOOLS_ON},
    ),
    "no template": ("without_template", {}),
    "a broken template": ("small", {"chat_template": templates.BROKEN}),
    "a short context": ("small", {"max_model_len": 80}),
}
# Their engines render in their own ways.
WITHOUT_FACTS: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt embeddings": ("small", {"enable_prompt_embeds": True}),
    "DeepSeek's renderer": ("small", {"tokenizer_mode": "deepseek_v32"}),
    "a template as a default": ("small", {"default_chat_template_kwargs": {"tools": []}}),
}
TWIN: dict[str, tuple[str, dict[str, Any]]] = {"a twin": ("embedded", {"tokenizer_mode": "hf"})}


class Vllm:
    """What vLLM says: facts of each setup (None: it has none), its answer to each request."""

    def __init__(
        self, facts: Mapping[str, RendererFacts | None], answers: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.facts = facts
        self.answers = answers
        self.gateways = {name: PromptTokens(each) for name, each in facts.items() if each}

    def mismatches(self, setup: str, requests: Mapping[str, Request]) -> list[str]:
        """Requests that vLLM answers, and the gateway differently or not at all."""
        wrong = []
        for name, (path, fields) in requests.items():
            ours, theirs = self.gateways[setup].token_ids(path, fields), self.answers[setup][name]
            if isinstance(theirs, list) and ours != theirs:
                wrong.append(f"{name}: {'nothing' if ours is None else 'other tokens'}")
        return wrong

    def answered(self, setup: str) -> set[str]:
        return {name for name, answer in self.answers[setup].items() if isinstance(answer, list)}


def requests_of(setup: str) -> dict[str, Request]:
    first = RANDOM_CHATS * list(SETUPS).index(setup)
    seeds = range(first, first + RANDOM_CHATS)
    random = {f"random {seed}": (CHAT, random_chat(seed)) for seed in seeds}
    # refused or not, these have an answer only on the paths that vLLM renders
    unknown = {n: r for n, r in UNKNOWN.items() if r[0] in READ}
    return {**KNOWN, **random, **unknown}


@pytest.fixture(scope="module")
def vllm(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Vllm:
    """Every setup and request, asked in one go: importing vLLM takes seconds."""
    folders = {"embedded": models.embedded()}
    for name in ("small", "with_bos", "with_unigram", "with_named_templates", "without_template"):
        folders[name] = getattr(models, name)(tmp_path_factory.mktemp("models") / name)
    setups = {**SETUPS, **WITHOUT_FACTS, **TWIN}
    asked = {
        "setups": {
            name: {"model": str(folders[model]), "engine_args": {"max_model_len": 2048, **args}}
            for name, (model, args) in setups.items()
        },
        "requests": [
            (setup, path, fields)
            for setup in SETUPS
            for path, fields in requests_of(setup).values()
        ],
    }
    done = subprocess.run(
        [warm_python, "-m", "tests.deployments.prompt.vllm_prompts"],
        input=json.dumps(asked),
        env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = iter([json.loads(line) for line in done.stdout.splitlines()])
    told = {name: next(said) for name in setups}
    facts = {name: RendererFacts.from_json(each) if each else None for name, each in told.items()}
    return Vllm(facts, {name: {r: next(said) for r in requests_of(name)} for name in SETUPS})


@pytest.mark.parametrize("setup", SETUPS)
def test_a_gateway_computes_the_tokens_that_vllm_does(setup: str, vllm: Vllm) -> None:
    assert vllm.mismatches(setup, KNOWN) == []


@pytest.mark.parametrize("setup", SETUPS)
def test_the_gateway_tokenizes_random_chats_like_vllm(setup: str, vllm: Vllm) -> None:
    random = {name: request for name, request in requests_of(setup).items() if "random" in name}
    assert vllm.mismatches(setup, random) == []


def test_vllm_accepts_the_requests_of_the_table(vllm: Vllm) -> None:
    """Or the comparison would be of nothing: these it may refuse, with one template or another."""
    answered = set().union(*(vllm.answered(setup) for setup in SETUPS))
    assert {name for name in KNOWN if name not in answered} == {
        "chat: a text too long",
        "tools: no tools",
        "template: continue and begin",
        "completion: an empty prompt",
        *(f"cut: {kind}, {how}" for kind in LONG for how in ("not cut", "cut to null")),
    }


LONG = ("long chat", "long prompt", "long prompt, no output")


@pytest.mark.parametrize("setup", SETUPS)
def test_a_gateway_does_not_guess_unknown_tokens(setup: str, vllm: Vllm) -> None:
    gateway = vllm.gateways[setup]
    answered = [name for name, request in UNKNOWN.items() if gateway.token_ids(*request)]
    assert answered == []


@pytest.mark.parametrize("setup", WITHOUT_FACTS)
def test_an_engine_with_custom_rendering_has_no_facts(setup: str, vllm: Vllm) -> None:
    assert vllm.facts[setup] is None


def test_engines_that_render_alike_have_one_digest(vllm: Vllm) -> None:
    digests = {name: facts.digest for name, facts in vllm.facts.items() if facts}
    assert digests["a twin"] == digests["the embedded model"]
    assert digests["one template over names"] == digests["tools"]
    assert digests["thinking"] != digests["thinking off"]
