"""Whether an engine's answers are continued, and what is said of their tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deployments.engine.vllm.resuming.resume_mode import Computing, ResumeMode, resume_of

GPU = Computing("0123456789abcdef", on_cpu=False, dtype="float16")
CPU = replace(GPU, on_cpu=True, dtype="float32")
PROOF = GPU.proof


@pytest.mark.parametrize(
    ("wanted", "proof", "engine", "mode"),
    [
        (None, "", CPU, "exact"),
        (None, "", replace(CPU, dtype="bfloat16"), "continued"),
        (None, "", GPU, "continued"),
        (None, "", replace(GPU, dtype="float32"), "continued"),
        (None, PROOF, GPU, "exact"),
        (None, "fedcba9876543210", GPU, "continued"),
        ("exact", "", CPU, "exact"),
        ("exact", PROOF, GPU, "exact"),
        ("exact", "", GPU, "off"),
        ("exact", "fedcba9876543210", GPU, "off"),
        ("continued", "", CPU, "continued"),
        ("continued", "", GPU, "continued"),
        ("off", "", CPU, "off"),
        ("off", PROOF, GPU, "off"),
    ],
)
def test_only_proved_engines_resume_exactly(
    wanted: ResumeMode | None, proof: str, engine: Computing, mode: str
) -> None:
    assert resume_of(wanted, proof, engine).mode == mode


def test_a_proof_of_other_engines_is_reported_with_the_properties_of_this_one() -> None:
    why = resume_of("exact", "fedcba9876543210", GPU).why
    assert "fedcba9876543210" in why and GPU.proof in why and "prove-resume" in why
