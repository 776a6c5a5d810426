"""The engine arguments that a plan writes, for vLLM's own parser to be asked about."""

from typing import Any

ENGINE_ARGS: dict[str, Any] = {
    "tensor_parallel_size": 2,
    "max_model_len": 8192,
    "max_num_seqs": 97,
    "max_num_batched_tokens": 8192,
    "gpu_memory_utilization": 0.9,
    "kv_cache_dtype": "fp8",
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
}
