"""Where 4 bits are warned of."""

from __future__ import annotations

import pytest

from weights.quantize.cautions import four_bit_cautions


@pytest.mark.parametrize(
    ("model", "parameters", "words"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8e9, []),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134.5e6, ["135 million"]),
        ("/models/DeepSeek-R1-Distill-Llama-70B/", 70e9, ["maths, code"]),
        ("Qwen/Qwen2.5-Coder-0.5B", 0.5e9, ["500 million", "maths, code"]),
        ("org/r10-70B", 70e9, []),
        ("code/llama-8b", 8e9, []),
    ],
)
def test_quantizing_a_small_or_sensitive_model_gives_a_warning(
    model: str, parameters: float, words: list[str]
) -> None:
    found = list(four_bit_cautions(model, int(parameters)))
    assert len(found) == len(words)
    assert all(word in caution for word, caution in zip(words, found, strict=True))
