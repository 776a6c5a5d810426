"""Do answers that are interrupted, and resumed by an engine from their tokens, equal
uninterrupted ones?

Each kind of request is answered completely, once more in another order, and then from several
interruptions on, always all at once. In between the prefix cache is dropped. So the engine computes
the tokens so far in one prefill, like an engine that has never seen them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from deployments.engine.vllm.offline.answer_kinds import KINDS
from deployments.engine.vllm.resuming.continuing import why_not
from deployments.engine.vllm.resuming.continuing_core import KNOWN_TOKENS

Ids = list[int]
Answers = Callable[[Sequence[tuple[Ids, SamplingParams]]], list[Any]]
"""vLLM's CompletionOutput of each prompt, all made at once."""


@dataclass(frozen=True)
class CutAnswers:
    """Results of one kind.

    `tokens` of the whole answers; of `cuts` resumed answers, `other` had a different rest: [cut,
    tokens of the whole answer, of the rest]. Of the uninterrupted repetitions, `reruns` differ:
    there is one for each of `tokens`. `logprobs_off`: the largest difference of a token's
    log-probability. `left_out`: why the engine cannot resume this kind.
    """

    tokens: list[Ids]
    cuts: int = 0
    other: tuple[tuple[int, Ids, Ids], ...] = ()
    reruns: int = 0
    logprobs_off: float = 0.0
    left_out: str | None = None


def params_of(kind: str, max_tokens: int, known: Ids | None = None) -> SamplingParams:
    """Return parameters of a request of this kind, with `known` tokens of its answer."""
    fields = {"temperature": 0, "max_tokens": max_tokens, **KINDS[kind]}
    if "structured" in fields:
        fields["structured_outputs"] = StructuredOutputsParams(**fields.pop("structured"))
    if known:
        fields["extra_args"] = {KNOWN_TOKENS: known}
    return SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)


@dataclass(frozen=True)
class Cutter:
    """The test of one engine: `answers` sends requests, `forget` drops its prefix cache, `config`
    is vLLM's."""

    answers: Answers
    forget: Callable[[], None]
    config: Any

    def compare(
        self, kind: str, prompts: Sequence[Ids], max_tokens: int, cuts: Sequence[int]
    ) -> CutAnswers:
        """Compare. `cuts`: the numbers of tokens after which each longer answer is interrupted."""
        streamed = params_of(kind, max_tokens)
        streamed.output_kind = RequestOutputKind.DELTA
        if (reason := why_not(streamed, {"type": "token"}, self.config)) is not None:
            return CutAnswers([], left_out=reason)
        asked = [(ids, params_of(kind, max_tokens)) for ids in prompts]
        whole = self._asked(asked)
        again = self._asked(asked[::-1])[::-1]
        cut = [
            (ids, answer, at)
            for ids, answer in zip(prompts, whole, strict=True)
            for at in cuts
            if at < len(answer.token_ids)
        ]
        rests = self._asked(
            [
                (ids, params_of(kind, max_tokens, list(answer.token_ids[:at])))
                for ids, answer, at in cut
            ]
        )
        pairs = [
            (at, list(answer.token_ids), list(rest.token_ids))
            for (_, answer, at), rest in zip(cut, rests, strict=True)
        ]
        off = [
            abs(a - b)
            for (_, answer, at), rest in zip(cut, rests, strict=True)
            for a, b in zip(_logprobs(answer)[at:], _logprobs(rest), strict=False)
        ]
        return CutAnswers(
            [list(answer.token_ids) for answer in whole],
            len(pairs),
            tuple((at, uncut, rest) for at, uncut, rest in pairs if uncut[at:] != rest),
            sum(list(a.token_ids) != list(b.token_ids) for a, b in zip(whole, again, strict=True)),
            max(off, default=0.0),
        )

    def _asked(self, asked: Sequence[tuple[Ids, SamplingParams]]) -> list[Any]:
        self.forget()
        return self.answers(asked)


def _logprobs(answer: Any) -> list[float]:
    places = zip(answer.token_ids, answer.logprobs or [], strict=False)
    return [of[token].logprob for token, of in places]
