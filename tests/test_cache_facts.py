"""What `cache_dtype` and `cache_kernels` of `weights` say of KV caches, asked of vLLM."""

import json
import subprocess
import sys

import pytest

from weights.model.cache_dtype import CACHE_DTYPES

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

HEAD = 128
# A separate process, since importing vLLM takes half a gigabyte.
SCRIPT = """
import json, os

answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backends import cpu_attn, flash_attn, flex_attention, triton_attn
from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode

BACKENDS = {
    "CPU_ATTN": cpu_attn.CPUAttentionBackend,
    "FLASH_ATTN": flash_attn.FlashAttentionBackend,
    "FLEX_ATTENTION": flex_attention.FlexAttentionBackend,
    "TRITON_ATTN": triton_attn.TritonAttentionBackend,
}


def bytes_of(name):
    "Of the key and the value of one head and token."
    spec = FullAttentionSpec(
        block_size=16,
        num_kv_heads=1,
        head_size=HEAD,
        dtype=STR_DTYPE_TO_TORCH_DTYPE[name],
        kv_quant_mode=get_kv_quant_mode(name),
    )
    return triton_attn.TritonAttentionBackend.customize_spec(spec).page_size_bytes // 16


facts = {
    "reads": {name: of.supported_kv_cache_dtypes for name, of in BACKENDS.items()},
    "bytes": {name: bytes_of(name) for name in NAMES},
}
with answer:
    json.dump(facts, answer)
"""


def test_the_table_of_cache_dtypes_matches_vllm() -> None:
    names = [name for name in CACHE_DTYPES if name not in ("auto", "float32")]
    scaled = {name for name in names if CACHE_DTYPES[name].has_scales}
    code = f"HEAD, NAMES = {HEAD}, {names}\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    facts = json.loads(done.stdout)
    assert facts["bytes"] == {name: 2 * CACHE_DTYPES[name].bytes_of(HEAD) for name in names}
    reads = {name: scaled & set(those) for name, those in facts["reads"].items()}
    assert reads.pop("TRITON_ATTN") == scaled
    assert not any(reads.values())
