"""A prompt's beginning is tokenized once, exactly, for those only who may know of it."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.pool import known_prompts
from deployments.gateway.pool.known_prompts import KnownPrompts, ReadPrompt
from deployments.prompt import PromptTokens
from deployments.prompt.cuts import MIN_PIECE_CHARS
from deployments.prompt.tokenizer import PromptTokenizer
from router.index import segment_keys
from router.index.segment_keys import Namespace, SegmentHasher, index_secret
from tests.deployments.prompt.engine_facts import facts
from tests.deployments.prompt.random_chats import WORDS
from tests.deployments.prompt.shapes import CHAT, COMPLETIONS, RESPONSES

LONG_ENOUGH = 100_000
FACTS = facts(max_model_len=LONG_ENOUGH)
PROMPTS = PromptTokens(FACTS)
HASHER = SegmentHasher(index_secret("fleet secret"))
TENANT, OTHER_TENANT = (Namespace("main", cache_salt=salt) for salt in ("one", "other"))
SEGMENT_TOKENS = 16

Messages = list[dict[str, str]]


def message(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


def chat(*texts: str) -> dict[str, Any]:
    roles = itertools.cycle(("user", "assistant"))
    return {"messages": [message(text, role) for text, role in zip(texts, roles, strict=False)]}


def long_text(word: str) -> str:
    return f"{word} " * MIN_PIECE_CHARS


def read(
    known: KnownPrompts,
    fields: dict[str, Any],
    namespace: Namespace = TENANT,
    path: str = CHAT,
    prompts: PromptTokens = PROMPTS,
    segment_tokens: int = SEGMENT_TOKENS,
) -> list[ReadPrompt] | None:
    return prompts.read(
        path,
        fields,
        lambda prompt: known.read(prompt, prompts.digest, HASHER, namespace, segment_tokens),
    )


def wanted(
    fields: dict[str, Any],
    path: str = CHAT,
    prompts: PromptTokens = PROMPTS,
    segment_tokens: int = SEGMENT_TOKENS,
) -> list[tuple[int, list[bytes]]] | None:
    """From tokens of the whole."""
    whole = prompts.token_ids(path, fields)
    if whole is None:
        return None
    return [(len(ids), HASHER.keys(TENANT, ids, segment_tokens)) for ids in whole]


def plain(found: Sequence[ReadPrompt] | None) -> list[tuple[int, list[bytes]]] | None:
    return None if found is None else [(prompt.tokens, list(prompt.keys)) for prompt in found]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The texts that were tokenized."""
    texts: list[str] = []
    encode = PromptTokenizer.encode_piece

    def noting(self: PromptTokenizer, text: str) -> list[int]:
        texts.append(text)
        return encode(self, text)

    monkeypatch.setattr(PromptTokenizer, "encode_piece", noting)
    yield texts


def test_a_prompt_prefix_is_not_tokenized_twice(encoded: list[str]) -> None:
    known = KnownPrompts()
    first = chat(long_text("once"))
    read(known, first)
    encoded.clear()
    assert plain(read(known, first)) == wanted(first)
    assert "once" not in "".join(encoded)


def test_short_prompts_are_not_cached() -> None:
    known = KnownPrompts()
    for _ in range(2):
        assert plain(read(known, chat("once"))) == wanted(chat("once"))
    assert known.size_bytes == 0


def test_only_the_new_part_of_a_conversations_next_turn_is_tokenized(encoded: list[str]) -> None:
    known = KnownPrompts()
    read(known, chat(long_text("once")))
    encoded.clear()
    turn = chat(long_text("once"), "a short answer", "a new question")
    assert plain(read(known, turn)) == wanted(turn)
    assert "once" not in "".join(encoded)
    assert "a new question" in "".join(encoded)


def test_questions_about_one_document_share_its_tokens(encoded: list[str]) -> None:
    known = KnownPrompts()
    document = {"role": "system", "content": long_text("document")}
    for question in (long_text("who"), long_text("what")):
        fields = {"messages": [document, message(question)]}
        assert plain(read(known, fields)) == wanted(fields)
    assert "".join(encoded).count(document["content"]) == 1


def test_tokens_are_not_shared_between_tenants(encoded: list[str]) -> None:
    known = KnownPrompts()
    read(known, chat(long_text("secret")))
    times = len(encoded)
    found = read(known, chat(long_text("secret")), OTHER_TENANT)
    assert encoded[:times] == encoded[times:]
    assert plain(found) != wanted(chat(long_text("secret")))


def test_the_token_cache_contains_no_readable_prompt(encoded: list[str]) -> None:
    known = KnownPrompts()
    read(known, chat(long_text("secret")))
    assert "secret" in "".join(encoded)
    for name, piece in known._pieces.items():
        assert b"secret" not in name + piece.keys + piece.rest
        assert len(piece.rest) // 4 < SEGMENT_TOKENS


@pytest.mark.parametrize(
    "changed",
    [{"split_special_tokens": True}, {"template": None}, {"max_model_len": 2 * LONG_ENOUGH}],
)
def test_each_renderer_has_separate_cached_pieces(changed: dict[str, Any]) -> None:
    known, other = KnownPrompts(), PromptTokens(facts(**{"max_model_len": LONG_ENOUGH, **changed}))
    for path, fields in (
        (CHAT, chat(long_text("once"), "<|im_start|>" * 200)),
        (COMPLETIONS, {"prompt": long_text("a") + "<|im_end|>" + long_text("b")}),
    ):
        for prompts in (PROMPTS, other, PROMPTS):
            assert plain(read(known, fields, path=path, prompts=prompts)) == wanted(
                fields, path, prompts
            )


def test_segments_of_another_length_have_separate_keys() -> None:
    known, fields = KnownPrompts(), chat(long_text("once"))
    for segment_tokens in (16, 32, 16):
        found = read(known, fields, segment_tokens=segment_tokens)
        assert plain(found) == wanted(fields, segment_tokens=segment_tokens)


def test_a_prompt_without_segments_is_counted_and_tokenized_once(encoded: list[str]) -> None:
    known, fields = KnownPrompts(), chat(long_text("once"))
    ((tokens, _),) = wanted(fields) or [(0, [])]
    assert plain(read(known, fields, segment_tokens=0)) == [(tokens, [])]
    encoded.clear()
    assert plain(read(known, fields, segment_tokens=0)) == [(tokens, [])]
    assert "once" not in "".join(encoded)


def test_a_prompt_longer_than_the_context_is_left_to_the_engine_every_time() -> None:
    known, prompts = KnownPrompts(), PromptTokens(facts(max_model_len=600))
    fields = chat("one " * 700)
    for _ in range(2):
        assert read(known, fields, prompts=prompts) is None
    assert plain(read(known, chat("one " * 100), prompts=prompts)) == wanted(chat("one " * 100))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": ["Once", long_text("upon") + "<|im_end|>" + long_text("a time")]}),
        (COMPLETIONS, {"prompt": [[5, 3, 5] * 50, [7]]}),
        (COMPLETIONS, {"prompt": long_text("upon"), "truncate_prompt_tokens": 100}),
        (RESPONSES, {"input": long_text("upon")}),
        (CHAT, {**chat(long_text("upon")), "add_special_tokens": True}),
    ],
)
def test_every_kind_of_prompt_is_read(path: str, fields: dict[str, Any]) -> None:
    known = KnownPrompts()
    for _ in range(2):
        assert plain(read(known, fields, path=path)) == wanted(fields, path)


conversations = st.lists(
    st.lists(st.sampled_from([*WORDS, " ", "\n"]), max_size=1500).map("".join)
    | st.sampled_from([long_text("a"), long_text("b")]),
    min_size=1,
    max_size=6,
)


@given(texts=conversations, data=st.data(), most_bytes=st.sampled_from([0, 900, 3000, 10**6]))
def test_cached_pieces_never_change_the_tokens_of_a_prompt(
    texts: list[str], data: st.DataObject, most_bytes: int
) -> None:
    known = KnownPrompts(most_bytes)
    for _ in range(data.draw(st.integers(1, 6))):
        turns = texts[: data.draw(st.integers(1, len(texts)))]
        fields = chat(*turns, *data.draw(st.lists(st.sampled_from(["", "a", "<|im_end|>"]))))
        assert plain(read(known, fields)) == wanted(fields)
        assert known.size_bytes <= most_bytes


def test_the_reported_size_is_close_to_the_used_memory() -> None:
    known = KnownPrompts(40_000)
    read(known, chat(long_text("warm")))
    tracemalloc.start()
    try:
        held_before = known.size_bytes
        for number in range(100):
            read(known, chat(long_text(f"{number}"), long_text(f"{number} again")))
        traced = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # threads of other tests, as those that export spans, take memory meanwhile
    ours = [
        tracemalloc.Filter(True, str(module.__file__)) for module in (known_prompts, segment_keys)
    ]
    taken = sum(of.size for of in traced.filter_traces(ours).statistics("filename"))
    held = known.size_bytes - held_before
    assert 30_000 < known.size_bytes <= 40_000
    assert held / 2 <= taken <= 2 * held


def test_many_threads_get_the_same_tokens_as_one() -> None:
    known = KnownPrompts(20_000)
    chats = [chat(long_text(f"{n % 3}"), long_text(f"{n % 7}")) for n in range(60)]
    expected = [wanted(each) for each in chats]
    with ThreadPoolExecutor(8) as threads:
        assert [plain(found) for found in threads.map(lambda f: read(known, f), chats)] == expected
    assert known.size_bytes == sum(piece.size_bytes for piece in known._pieces.values())
