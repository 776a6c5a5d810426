"""Speculation on real engines: the same greedy answers, token by token, and what it gains.

In float32: in bfloat16 two tokens may tie, and a pass over several tokens rounds otherwise than
one over a single token.
"""

from pathlib import Path

import pytest

from deployments.offline.speculation_sweep import MeasuredArm, Sweep, Trial, Way, sweep
from deployments.offline.speculation_ways import NGRAM
from weights.speculation.draft_yield import recommend
from weights.speculation.drafts import first_layers

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ENGINE_ARGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "enable_prefix_caching": False,
}
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
LONGEST = 24  # tokens of an answer
COPIED = (
    "The harbour opens at six, and the first ferry leaves a quarter of an hour later.",
    "Mix two cups of flour with one cup of water, and let the dough rest under a cloth.",
    "Our train passed seven small stations before anyone asked us for our tickets.",
    "The museum keeps its oldest maps in a cold room on the third floor.",
    "Every lamp in the street went out, and the whole town looked up at the stars.",
)
FREE = (
    "Why is the sky blue?",
    "Tell me a short story about a lighthouse.",
    "What should I know before I buy a bicycle?",
    "Explain how bread rises.",
    "Name three rivers, and say where they end.",
)
PROMPTS = [f"Repeat this text word by word, three times: {text}" for text in COPIED] + list(FREE)


@pytest.fixture(scope="module")
def swept(
    warm_executable: None, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Sweep:
    folder = tmp_path_factory.mktemp("speculation")
    first_layers(small_model, 2, folder / "draft")
    trial = Trial(
        model=str(small_model),
        engine_args=ENGINE_ARGS,
        env=ENV,
        prompts=[[{"role": "user", "content": prompt}] for prompt in PROMPTS],
        max_tokens=LONGEST,
        rounds=2,
        # engines that wait take memory of which CI has little
        apart=True,
        exact=False,
        logs=Path(folder),
    )
    draft = {"method": "draft_model", "model": str(folder / "draft")}
    ways = (Way("ngram", NGRAM, (4,)), Way("draft_model", draft, (3,), as_written=True))
    found = sweep(trial, ways, lambda words: None)
    assert found.failed == {}
    return found


def arm(swept: Sweep, way: str, drafted: int) -> MeasuredArm:
    return next(one for one in swept.measured if (one.way, one.drafted) == (way, drafted))


@pytest.mark.parametrize(("way", "drafted"), [("ngram", 4), ("ngram", 0), ("draft_model", 3)])
def test_greedy_answers_are_those_without_speculation(swept: Sweep, way: str, drafted: int) -> None:
    found = arm(swept, way, drafted)
    assert found.equal_answers == 1.0
    assert max(map(len, found.runs[0].outputs)) == LONGEST


def test_n_grams_are_accepted_where_text_is_copied(swept: Sweep) -> None:
    found = arm(swept, "ngram", 4)
    assert found.acceptance_rate is not None
    assert found.acceptance_rate > 0.2
    assert found.tokens_per_pass > 1.1


def test_nothing_is_drafted_while_speculation_is_off(swept: Sweep) -> None:
    off = arm(swept, "ngram", 0)
    assert off.acceptance_rate is None
    assert off.tokens_per_pass == 1.0


def test_a_draft_of_the_models_own_first_layers_is_not_recommended(swept: Sweep) -> None:
    found = arm(swept, "draft_model", 3)
    assert found.draft_length == 3
    assert recommend([found.candidate]).best is None
