"""A request's tokens, known in the gateway or left open."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from deployments.prompt import MessagesFacts, PromptPieces, PromptTokens, tokenizer
from deployments.prompt.cuts import pieces
from tests.deployments.prompt.all_shapes import KNOWN, UNKNOWN
from tests.deployments.prompt.engine_facts import facts
from tests.deployments.prompt.random_chats import random_chat
from tests.deployments.prompt.shapes import CHAT, COMPLETIONS, READ, RESPONSES
from tests.some import some

TOKENIZER = Tokenizer.from_str(facts().tokenizer)
GATEWAY = PromptTokens(facts(messages=MessagesFacts(False, "none")))
USER = {"role": "user", "content": "Once upon a time"}
CHATML = "<|im_start|>user\nOnce upon a time<|im_end|>\n<|im_start|>assistant\n"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
FIELDS = (
    *("messages", "tools", "tool_choice", "documents", "chat_template_kwargs", "prompt", "input"),
    *("instructions", "reasoning", "reasoning_effort", "add_generation_prompt", "truncation"),
    *("continue_final_message", "add_special_tokens", "truncate_prompt_tokens", "max_tokens"),
    *("truncation_side", "kv_transfer_params", "system", "thinking", "output_config"),
)
MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "type")


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER], **fields}


def test_a_chat_is_rendered_and_tokenized() -> None:
    assert GATEWAY.token_ids(CHAT, chat()) == [ids(CHATML)]


def test_a_completion_has_one_token_list_per_prompt() -> None:
    asked = {"prompt": ["Once", "upon a time"]}
    assert GATEWAY.token_ids(COMPLETIONS, asked) == [ids("Once"), ids("upon a time")]


def test_a_response_is_a_chat() -> None:
    assert GATEWAY.token_ids(RESPONSES, {"input": "Once upon a time"}) == [ids(CHATML)]


def test_token_ids_stay_as_they_are() -> None:
    assert GATEWAY.token_ids(COMPLETIONS, {"prompt": [5, 3, 5]}) == [[5, 3, 5]]


def test_a_chat_with_tools_has_a_separate_template() -> None:
    gateway = PromptTokens(facts(tool_template=None))
    tool = {"type": "function", "function": {"name": "now"}}
    assert gateway.token_ids(CHAT, chat(tools=[tool])) is None
    assert gateway.token_ids(CHAT, chat()) is not None


@pytest.mark.parametrize("template", [None, "{% for", "{{ raise_exception('no') }}", "{{ 1 / 0 }}"])
def test_completions_are_tokenized_even_if_the_chat_template_fails(template: str | None) -> None:
    gateway = PromptTokens(facts(template))
    assert gateway.token_ids(CHAT, chat()) is None
    assert gateway.token_ids(COMPLETIONS, {"prompt": "Once"}) == [ids("Once")]


def test_facts_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(ValueError, match="tokenizer cannot be rebuilt"):
        PromptTokens(facts(tokenizer="{}"))


def test_truncation_and_padding_of_a_tokenizer_are_disabled() -> None:
    cutting = Tokenizer.from_str(facts().tokenizer)
    cutting.enable_truncation(3)
    cutting.enable_padding(length=400)
    gateway = PromptTokens(facts(tokenizer=cutting.to_str()))
    assert gateway.token_ids(CHAT, chat()) == [ids(CHATML)]


def test_special_tokens_may_be_text_like_any_other() -> None:
    gateway = PromptTokens(facts(split_special_tokens=True))
    (split,) = gateway.token_ids(COMPLETIONS, {"prompt": "<|im_end|>"}) or [[]]
    assert len(split) > 1


@pytest.mark.parametrize(
    "prompt", ["one " * 600, "x" * 1_000_000, ["x" * 999] * 999, [""] * 1_000_000]
)
def test_a_prompt_too_long_is_left_to_the_engine(prompt: Any) -> None:
    assert GATEWAY.token_ids(COMPLETIONS, {"prompt": prompt}) is None
    assert GATEWAY.token_ids(COMPLETIONS, {"prompt": prompt, "truncation_side": "left"}) is None


def test_a_chat_of_more_messages_than_tokens_is_left_to_the_engine() -> None:
    gateway = PromptTokens(facts("{{ messages | length }}"))
    assert gateway.token_ids(CHAT, {"messages": [USER] * 512}) == [ids("512")]
    assert gateway.token_ids(CHAT, {"messages": [USER] * 513}) is None


def test_a_chat_too_long_is_not_rendered() -> None:
    gateway = PromptTokens(facts("{{ messages[0].content | length }}"))
    long = {"role": "user", "content": "x" * 60_000}
    assert gateway.token_ids(CHAT, {"messages": [long]}) == [ids("60000")]
    assert gateway.token_ids(CHAT, {"messages": [long] * 2}) is None


@pytest.mark.parametrize("name", UNKNOWN)
def test_requests_that_only_the_engine_can_tokenize_are_left_open(name: str) -> None:
    path, fields = UNKNOWN[name]
    assert GATEWAY.token_ids(path, fields) is None


@given(st.sampled_from(READ), st.data())
def test_tokenizing_never_raises_for_any_request(path: str, data: st.DataObject) -> None:
    message = st.dictionaries(st.sampled_from(MESSAGE_FIELDS), JSON)
    fields = data.draw(st.dictionaries(st.sampled_from(FIELDS), JSON))
    fields |= data.draw(
        st.fixed_dictionaries(
            {}, optional={"messages": st.lists(message), "input": st.lists(message)}
        )
    )
    answer = GATEWAY.token_ids(path, fields)
    assert answer is None or all(isinstance(each, list) for each in answer)


@pytest.mark.parametrize("path", READ)
def test_tokenizing_never_raises_for_a_lone_surrogate(path: str) -> None:
    fields = {"messages": [{"role": "user", "content": "\ud800"}], "prompt": "\ud800"}
    assert GATEWAY.token_ids(path, {**fields, "input": "\ud800"}) is None


def test_tokenizing_never_raises_for_deeply_nested_input() -> None:
    deep = json.loads('{"a":' * 900 + "1" + "}" * 900)
    gateway = PromptTokens(facts("{{ mood | tojson }}{{ messages[0].content }}"))
    gateway.token_ids(CHAT, chat(chat_template_kwargs={"mood": deep}))


def test_a_request_is_not_changed() -> None:
    requests = [*KNOWN.values(), *((CHAT, random_chat(seed)) for seed in range(50))]
    for path, fields in some(requests):
        before = copy.deepcopy(fields)
        GATEWAY.token_ids(path, fields)
        assert fields == before


def test_every_kind_of_request_has_the_same_tokens_when_cut_into_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer, "pieces", partial(pieces, at_least=1))
    cut = []

    def in_pieces(prompt: PromptPieces | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        cut.append(len(prompt.texts))
        ids = [id_ for text in prompt.texts for id_ in prompt.encode(text)]
        prompt.check_length(len(ids))
        return ids

    requests = [*KNOWN.values(), *((CHAT, random_chat(seed)) for seed in range(200))]
    for path, fields in requests:
        assert GATEWAY.read(path, fields, in_pieces) == GATEWAY.token_ids(path, fields)
    assert max(cut) > 10


def test_many_threads_get_the_same_token_ids_as_one() -> None:
    chats = [random_chat(seed) for seed in range(100)]
    alone = [GATEWAY.token_ids(CHAT, each) for each in chats]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda each: GATEWAY.token_ids(CHAT, each), chats)) == alone


def test_deployments_prompt_imports_neither_vllm_nor_transformers_nor_torch() -> None:
    code = (
        "import sys, deployments.prompt; "
        "print(*{'vllm', 'transformers', 'torch', 'numpy'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.strip() == ""
