"""Adapters in vLLM: its CPU kernels without one, and which fit a model."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.harness.fleets.made_adapter import RANK, make_adapter
from deployments.engine.adapters.adapter_files import WEIGHTS
from deployments.engine.vllm.lora import EngineLoras
from deployments.engine.vllm.patches import cpu_lora

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def test_cpu_kernels_change_nothing_for_requests_without_an_adapter() -> None:
    import torch
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    cpu_lora.register()
    slots = torch.tensor([-1, 1, -1, 0])
    inputs, shrink = torch.ones(4, 8), torch.ones(2, 3, 8)
    expand, outputs = torch.ones(2, 8, 3), {}
    for kernels in (lora_ops, punica_cpu):
        buffer, out = torch.zeros(4, 3), torch.ones(4, 8)
        kernels.bgmv_shrink(inputs, shrink, buffer, slots, 2.0)
        kernels.bgmv_expand(buffer, expand, out, slots, True)
        kernels.bgmv_expand_slice(torch.ones(4, 3), expand, out, slots, 0, 8, True)
        assert (out[[0, 2]] == 1).all() and (out[[1, 3]] == 1 + 3 * 16 + 3).all()
        outputs[kernels] = out
    # the reason: vLLM's own computes them with the last slot's weights
    own, buffer = lora_ops.bgmv_shrink.__wrapped__, torch.zeros(4, 3)
    own(inputs, shrink, buffer, slots, 2.0)
    assert (buffer == 16).all()
    # prompts, whose kernels call these
    lengths, of_sequences = torch.tensor([1, 2]), torch.tensor([-1, 1])
    buffer = torch.zeros(3, 3)
    lora_ops.sgmv_shrink(
        torch.ones(3, 8), shrink, buffer, lengths, lengths, of_sequences, 2, 2, 3, 2.0
    )
    assert (buffer[0] == 0).all() and (buffer[1:] == 16).all()


@pytest.fixture(scope="module")
def adapted(small_model: Path) -> EngineLoras:
    config = SimpleNamespace(max_loras=2, max_cpu_loras=3, max_lora_rank=8)
    shape = SimpleNamespace(to_dict=lambda: json.loads((small_model / "config.json").read_text()))
    model = SimpleNamespace(hf_config=shape)
    engine = SimpleNamespace(vllm_config=SimpleNamespace(lora_config=config), model_config=model)
    return EngineLoras(engine, SimpleNamespace(model_name=lambda request=None: "model"))


def test_an_adapter_of_the_model_fits(
    adapted: EngineLoras, small_model: Path, tmp_path: Path
) -> None:
    make_adapter(small_model, tmp_path / "a")
    assert adapted.misfit(RANK, tmp_path / "a" / WEIGHTS) is None
    assert (adapted.slots, adapted.capacity) == (2, 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": 512}, "its q_proj has 512 inputs, but the model's has 576"),
        ({"num_key_value_heads": 9}, "its v_proj has 576 outputs, but the model's has 192"),
        ({"num_hidden_layers": 30}, "but the model has 4 layers"),
    ],
)
def test_an_adapter_of_another_model_does_not_fit(
    adapted: EngineLoras, small_model: Path, tmp_path: Path, changes: dict[str, int], says: str
) -> None:
    config = json.loads((small_model / "config.json").read_text())
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "head_dim": head_dim, **changes}))
    make_adapter(tmp_path, tmp_path / "a")
    misfit = adapted.misfit(RANK, tmp_path / "a" / WEIGHTS)
    assert misfit is not None and says in misfit


def test_an_adapter_of_a_higher_rank_or_of_damaged_files_does_not_fit(
    adapted: EngineLoras, tmp_path: Path
) -> None:
    assert "max_lora_rank: 16" in str(adapted.misfit(16, tmp_path / WEIGHTS))
    (tmp_path / WEIGHTS).write_bytes(b"no header")
    assert "is damaged" in str(adapted.misfit(8, tmp_path / WEIGHTS))
