"""`antefix prove-resume` on a real engine: its proof is the one that a replica accepts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from deployments.offline.offline_engine import OfflineEngine
from deployments.offline.resume_proof import prove

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ENGINE_ARGS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 64}
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def test_continued_answers_have_the_tokens_of_uncut_ones(
    warm_executable: None, small_model: Path, tmp_path: Path
) -> None:
    model = str(small_model)
    proof = prove(
        lambda: OfflineEngine.start(model, ENGINE_ARGS, tmp_path / "log", ENV),
        lambda words, done: None,
        answer_tokens=12,
    )
    assert proof.is_exact, proof.kinds
    assert proof.cuts > 200
    assert all(found.left_out is None for found in proof.kinds.values())
    assert (proof.engine.runner, proof.engine.platform) == ("V1", "cpu")
    from deployments.engine.vllm.resuming.continuing import made_by, proof_of  # vLLM

    config = SimpleNamespace(use_v2_model_runner=False)
    assert proof.engine.proof == proof_of(made_by(model, ENGINE_ARGS, config))
    assert not proof.engine.batch_invariant
