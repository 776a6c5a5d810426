"""How two engines are compared; each is a model of eight tokens that is worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from common.errors import Problem
from deployments.offline import evaluation
from deployments.offline.evaluation import EvaluationTask, Window, evaluate
from deployments.offline.offline_engine import Generated, Loaded, OfflineEngine, Tokens
from weights.evaluate.report import Evaluation
from weights.evaluate.statistics import TokenFigures, compared

VOCABULARY = 8
BOS = 7


class TinyEngine:
    """An engine whose next token depends only on the last: `logits`, [last token, next token]."""

    def __init__(self, seed: int, noise: float = 0.0, vocabulary: str = "same") -> None:
        self.logits = np.random.default_rng(seed).normal(0, 2, (VOCABULARY, VOCABULARY))
        self.logits += np.random.default_rng(99).normal(0, noise, self.logits.shape)
        self.closed = False
        self.files: list[Path] = []
        self.loaded = Loaded(
            load_s=1.0,
            kv_tokens=1000,
            folder=None,
            vocabulary=VOCABULARY,
            max_context=64,
            max_step_tokens=64,
            dtype="float32",
            token_ids=vocabulary,
        )

    def __enter__(self) -> TinyEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True

    def tokens(self, texts: list[str]) -> list[Tokens]:
        return [[BOS, *(ord(letter) % 7 for letter in text)] for text in texts]

    def chat_tokens(self, conversations: list[list[dict[str, str]]]) -> list[Tokens]:
        return self.tokens(["".join(m["content"] for m in each) for each in conversations])

    def generate(self, prompts: list[Tokens], max_tokens: int, **_: Any) -> Generated:
        assert not self.closed
        outputs = [self._continued(prompt, max_tokens) for prompt in prompts]
        return Generated(outputs, 1.0, max_tokens, 0.1, 0.1, 10.0, 0, 0, 0)

    def _continued(self, prompt: Tokens, count: int) -> Tokens:
        answer: Tokens = []
        for _ in range(count):
            answer.append(int(self.logits[(answer or prompt)[-1]].argmax()))
        return answer

    def write_logprobs(self, window: Tokens, into: Path) -> None:
        assert not self.closed
        with into.open("wb") as file:
            np.save(file, self._logprobs(window).astype(np.float16))
        self.files.append(into)

    def compare_logprobs(self, window: Tokens, against: Path) -> TokenFigures:
        assert not self.closed
        return compared(np.load(against), self._logprobs(window), np.array(window[1:]))

    def _logprobs(self, window: Tokens) -> Any:
        logits = self.logits[window[:-1]]
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def asked(**changes: Any) -> EvaluationTask:
    known: dict[str, Any] = {
        "texts": ["the quick brown fox jumps over the lazy dog, and again " * 4],
        "text": "a text",
        "prompts": [[{"role": "user", "content": "What is it?"}]] * 3,
        "window": 32,
        "most_windows": 64,
        "max_tokens": 8,
        "concurrency": 4,
        "rounds": 2,
        "together": True,
    }
    return EvaluationTask(**{**known, **changes})


def run(a: TinyEngine, b: TinyEngine, how: EvaluationTask) -> Evaluation:
    engines = {"a": a, "b": b}

    def start(model: str) -> OfflineEngine:
        return cast("OfflineEngine", engines[model])

    return evaluate("a", "b", how, start, {"dtype": "float32"}, lambda *_: None)


def test_a_model_compared_with_itself_has_no_loss() -> None:
    found = run(TinyEngine(1), TinyEngine(1), asked())
    assert found.kl.value < 1e-5
    assert found.perplexity_ratio.value == pytest.approx(1, abs=1e-3)
    assert found.top_1_agreement.low == 1
    assert found.answers is not None
    assert found.answers.equal.value == 1
    assert found.rates is not None
    assert found.rates.decode.value == pytest.approx(1)


def test_more_noise_gives_a_greater_loss() -> None:
    little, much = (run(TinyEngine(1), TinyEngine(1, noise), asked()) for noise in (0.1, 2.0))
    assert 0 < little.kl.value < much.kl.value
    assert much.top_1_agreement.value < 1
    assert much.exceeded(max_kl=little.kl.value, max_ppl_increase=None)


def test_results_are_equal_whether_engines_run_together_or_in_turn() -> None:
    one, other = (
        run(TinyEngine(1), TinyEngine(1, 0.5), asked(together=together))
        for together in (True, False)
    )
    assert one.kl == other.kl
    assert one.perplexity_ratio == other.perplexity_ratio
    assert one.answers == other.answers


def test_separate_engines_are_closed_before_the_next_one_is_loaded() -> None:
    a, b = TinyEngine(1), TinyEngine(1)

    def start(model: str) -> OfflineEngine:
        assert model == "a" or a.closed
        return cast("OfflineEngine", a if model == "a" else b)

    evaluate("a", "b", asked(together=False), start, {}, lambda *_: None)


def test_an_evaluation_leaves_no_files_on_the_disk() -> None:
    a = TinyEngine(1)
    run(a, TinyEngine(1), asked(together=False))
    assert a.files
    assert not any(file.exists() for file in a.files)


def test_without_a_text_the_answers_of_the_reference_are_evaluated() -> None:
    a = TinyEngine(1)
    found = run(a, TinyEngine(1, 1.0), asked(texts=[]))
    assert found.tokens == 3 * 8
    # the prompts themselves are not judged: its own greedy tokens are likely to it
    assert found.reference.perplexity.value < VOCABULARY / 2


def windows_of(engine: OfflineEngine, **asked_for: Any) -> list[Window]:
    return evaluation._windows(engine, asked(window=20, **asked_for), [], [])


def test_every_window_starts_with_the_special_tokens_of_the_tokenizer() -> None:
    engine = cast("OfflineEngine", TinyEngine(1))
    windows = windows_of(engine)
    assert len(windows) > 5
    assert all(window.ids[0] == BOS and len(window.ids) <= 20 for window in windows)
    text = engine.tokens(list(asked().texts))[0]  # type: ignore[arg-type]
    assert [t for window in windows for t in window.ids[1:]] == text[1 : 1 + 19 * len(windows)]


def test_fewer_windows_are_spread_over_the_text() -> None:
    engine = cast("OfflineEngine", TinyEngine(1))
    every = windows_of(engine)
    some = windows_of(engine, most_windows=3)
    assert some == [every[0], every[len(every) // 3], every[int(2 * len(every) / 3)]]


def test_models_of_different_vocabularies_are_refused() -> None:
    with pytest.raises(Problem, match="different vocabularies"):
        run(TinyEngine(1), TinyEngine(1, vocabulary="other"), asked())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"texts": ["short"]}, "no text has at least 16 tokens"),
        ({"max_tokens": 60}, "no prompt leaves room for 60 more tokens in a context of 64"),
    ],
)
def test_unreadable_input_is_reported(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Problem, match=complaint):
        run(TinyEngine(1), TinyEngine(1), asked(**changes))


def test_a_window_longer_than_a_step_is_refused() -> None:
    a = TinyEngine(1)
    a.loaded = Loaded(**{**vars(a.loaded), "max_step_tokens": 16})
    with pytest.raises(Problem, match="a window of 32 tokens does not fit into one step"):
        run(a, TinyEngine(1), asked())


def test_a_disk_that_is_too_small_is_reported_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full:
        free = 10

    monkeypatch.setattr("shutil.disk_usage", lambda path: Full)
    a = TinyEngine(1)
    with pytest.raises(Problem, match="set TMPDIR"):
        run(a, TinyEngine(1), asked())
    assert a.files == []
