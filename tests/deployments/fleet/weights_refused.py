"""Models and arguments that are refused, with what is said, and the nearest that fit."""

from tests.deployments.fleet.weighed_pools import (
    BLOCKS,
    EXPERTS,
    GB,
    HEAD,
    INT8,
    SMALL,
    SPECULATES,
    Case,
    Pool,
    compressed,
    quantized,
)

N_GRAMS_OF_A_GPU = {"method": "ngram_gpu", "num_speculative_tokens": 2, "prompt_lookup_max": 4}
REFUSED: dict[str, Case] = {
    "fp8 by channel on Ampere": Case(
        Pool({"quantization": "fp8_per_channel"}, gpu="A100-80G"),
        "engine_args.quantization = fp8_per_channel: vLLM has no kernel for FP8 by channel on "
        "this GPU: they require capability 8.9. Write fp8_per_tensor, or quantize first: antefix "
        "quantize --scheme w8a8-smoothquant.",
        Pool({"quantization": "fp8_per_channel"}, gpu="H100"),
    ),
    "int8 for experts before Ampere": Case(
        Pool({"quantization": "experts_int8"}, gpu="T4", config={**EXPERTS, "dtype": "float16"}),
        "engine_args.quantization = experts_int8: vLLM has no kernel for experts_int8 on this "
        "GPU: it has capability 7.5, and 8.0 is needed. Serve unquantized weights in float16, or "
        "use a newer GPU.",
        Pool({"quantization": "experts_int8"}, gpu="A100-80G", config=EXPERTS),
    ),
    "int8 arithmetic on Blackwell": Case(
        Pool(gpu="B200", quantization=INT8),
        "model = {model}: vLLM has no kernel for W8A8 INT8 on this GPU: it has capability 10.0, "
        "and they end before 10.0. Use FP8: antefix quantize --scheme fp8.",
        Pool(gpu="H100", quantization=INT8),
    ),
    "four bits on Volta": Case(
        Pool(gpu="V100", quantization=quantized("awq")),
        "model = {model}: vLLM has no kernel for W4A16 on this GPU: it has capability 7.0, and 7.5 "
        "is needed. Serve unquantized weights in float16, or use a newer GPU.",
        Pool(gpu="T4", quantization=quantized("awq")),
    ),
    "gptq in groups that only it would have": Case(
        Pool(gpu="H100", quantization=quantized("gptq", 16)),
        "model = {model}: Marlin, vLLM's fast kernel, supports groups of 32, 64 or 128, not of 16, "
        "and GPTQ has no other kernel. Quantize it again: antefix quantize --group-size 128.",
        Pool(gpu="H100", quantization=quantized("gptq", 32)),
    ),
    "weights of 8 bit alone on a CPU": Case(
        Pool(quantization=compressed(8, "int", None), env={"VLLM_CPU_KVCACHE_SPACE": "4"}),
        "model = {model}: vLLM's CPU build has no kernel for 8-bit weights with 16-bit inputs "
        "(W8A16). Use W4A16 (antefix quantize --scheme awq) or W8A8 (w8a8-smoothquant).",
        Pool(quantization=INT8, env={"VLLM_CPU_KVCACHE_SPACE": "4"}),
    ),
    "a format that vLLM dropped": Case(
        Pool(gpu="H100", quantization={"quant_method": "bitsandbytes"}),
        "model = {model}: this vLLM cannot load checkpoints quantized with bitsandbytes. "
        "Serve the original weights, or quantize them: antefix quantize.",
        Pool(gpu="H100"),
    ),
    "a format that vLLM is dropping": Case(
        Pool(gpu="B200", quantization={"quant_method": "fp_quant"}),
        "model = {model}: vLLM deprecates fp_quant, and accepts it only if allowed. "
        "Quantize it again (antefix quantize), or set allow_deprecated_quantization.",
        Pool(
            {"allow_deprecated_quantization": True},
            gpu="B200",
            quantization={"quant_method": "fp_quant"},
        ),
    ),
    "another quantization than the checkpoint's": Case(
        Pool({"quantization": "gptq_marlin"}, quantization=quantized("awq")),
        "engine_args.quantization = gptq_marlin: the checkpoint is quantized with awq. Leave it "
        "out: vLLM reads it from the checkpoint.",
        Pool({"quantization": "awq_marlin"}, quantization=quantized("awq")),
    ),
    "a quantization of plain weights": Case(
        Pool({"quantization": "awq"}),
        "engine_args.quantization = awq: the checkpoint is not quantized. Quantize it first "
        "(antefix quantize), or leave it out.",
        Pool(),
    ),
    "fp8 of plain weights": Case(
        Pool({"quantization": "fp8"}),
        "engine_args.quantization = fp8: the checkpoint is not quantized. Quantize it first "
        "(antefix quantize), or leave it out, or let vLLM do it while it loads: fp8_per_tensor.",
        Pool({"quantization": "fp8_per_tensor"}),
    ),
    "a name that vLLM's CPU build does not take": Case(
        Pool(
            {"quantization": "awq_marlin"},
            quantization=quantized("awq"),
            env={"VLLM_CPU_KVCACHE_SPACE": "4"},
        ),
        "engine_args.quantization = awq_marlin: vLLM's CPU build knows it only as awq. Leave it "
        "out: vLLM reads it from the checkpoint.",
        Pool(quantization=quantized("awq"), env={"VLLM_CPU_KVCACHE_SPACE": "4"}),
    ),
    "heads over GPUs": Case(
        Pool({"tensor_parallel_size": 3}),
        "engine_args.tensor_parallel_size = 3: does not divide the model's 32 attention heads. Use "
        "one of 1, 2, 4, 8, 16, 32.",
        Pool({"tensor_parallel_size": 4}),
    ),
    "key-value heads over GPUs": Case(
        Pool({"tensor_parallel_size": 8}, config={"num_key_value_heads": 6}),
        "engine_args.tensor_parallel_size = 8: neither divides the model's 6 key-value heads nor "
        "is a multiple of it. Use one of 1, 2.",
        Pool({"tensor_parallel_size": 2}, config={"num_key_value_heads": 6}),
    ),
    "a layer's width over GPUs": Case(
        Pool({"tensor_parallel_size": 16}, config={"intermediate_size": 11000}),
        "engine_args.tensor_parallel_size = 16: does not divide the model's intermediate size of "
        "11000. Use one of 1, 2, 4, 8.",
        Pool({"tensor_parallel_size": 8}, config={"intermediate_size": 11000}),
    ),
    "groups over GPUs": Case(
        Pool({"tensor_parallel_size": 4}, quantization=quantized("awq")),
        "engine_args.tensor_parallel_size = 4: leaves 2752 of mlp.down_proj's 11008 to a GPU, "
        "which is not a multiple of the quantization's groups of 128. Use one of 1, 2.",
        Pool({"tensor_parallel_size": 4}, quantization=quantized("awq", 64)),
    ),
    "groups in a layer": Case(
        Pool(config=SMALL, quantization=compressed(4, "int", None, 128)),
        "model = {model}: q_proj's 576 inputs are not a multiple of the quantization's groups of "
        "128. Quantize it again, with a group size that fits: antefix quantize.",
        Pool(config=SMALL, quantization=compressed(4, "int", None, 64)),
    ),
    "blocks over GPUs": Case(
        Pool({"tensor_parallel_size": 4}, gpu="H100", quantization=BLOCKS),
        "engine_args.tensor_parallel_size = 4: leaves 2752 of mlp.gate_proj's 11008 to a GPU, "
        "which is not a multiple of the quantization's groups of 128. Use one of 1, 2.",
        Pool({"tensor_parallel_size": 2}, gpu="H100", quantization=BLOCKS),
    ),
    "weights beyond the memory": Case(
        Pool(gpu="A100-40G", size=80 * GB),
        "model = {model}: its weights take 74.5 GiB of each GPU, but vLLM may use only 36.4 GiB "
        "of the A100-40G. Set tensor_parallel_size to 4, or use fewer bits (antefix quantize) or "
        "a GPU with more memory.",
        Pool({"tensor_parallel_size": 4}, gpu="A100-40G", size=80 * GB),
    ),
    "weights that are not here beyond the memory": Case(
        Pool(gpu="L4", config={"num_hidden_layers": 80}, size=0),
        "model = {model}: its weights take 26.9 GiB of each GPU, but vLLM may use only 20.3 GiB "
        "of the L4. Set tensor_parallel_size to 2, or use fewer bits (antefix quantize) or a GPU "
        "with more memory.",
        Pool(gpu="L4", config={"num_hidden_layers": 80}, size=0, quantization=quantized("awq")),
    ),
    "one request's cache beyond the memory": Case(
        Pool(
            {"max_model_len": 65536},
            gpu="L4",
            config={"max_position_embeddings": 131072},
            size=14 * GB,
        ),
        "engine_args.max_model_len = 65536: the KV cache of one request of 65536 tokens takes 8.0 "
        "GiB, but only 7.3 GiB are left (20.3 GiB less 13.0 GiB of weights). Set max_model_len to "
        "at most 59472, or give it more memory.",
        Pool(
            {"max_model_len": 16384},
            gpu="L4",
            config={"max_position_embeddings": 131072},
            size=14 * GB,
        ),
    ),
    "a draft beyond the memory": Case(
        Pool(
            {"max_model_len": 4096, "speculative_config": SPECULATES},
            gpu="L4",
            size=20 * GB,
            draft={},
        ),
        "engine_args.speculative_config.model = {draft}: its weights take 0.9 GiB of each GPU and "
        "its KV cache 0.5 GiB for one request, but the model leaves 1.2 GiB. Use a smaller draft "
        "or method: ngram, or lower max_model_len.",
        Pool(
            {"max_model_len": 4096, "speculative_config": SPECULATES},
            gpu="L4",
            size=16 * GB,
            draft={},
        ),
    ),
    "one request's cache beyond what a CPU sets aside": Case(
        Pool(
            {"max_model_len": 8192}, env={"VLLM_CPU_KVCACHE_SPACE": "1"}, config={"head_dim": 256}
        ),
        "engine_args.max_model_len = 8192: the KV cache of one request of 8192 tokens takes 2.0 "
        "GiB, but only 1.0 GiB are left (VLLM_CPU_KVCACHE_SPACE). Set max_model_len to at most "
        "4096, or give it more memory.",
        Pool(
            {"max_model_len": 8192}, env={"VLLM_CPU_KVCACHE_SPACE": "2"}, config={"head_dim": 256}
        ),
    ),
    "a context beyond the model's": Case(
        Pool({"max_model_len": "16K"}),
        "engine_args.max_model_len = 16384: the model was made for 8192 tokens. Set it to at most "
        "8192, or set max_position_embeddings in hf_overrides too.",
        Pool({"max_model_len": 8192}),
    ),
    "a context beyond the model's by positions that lengthen nothing": Case(
        Pool(
            {
                "max_model_len": 16384,
                "hf_overrides": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            }
        ),
        "engine_args.max_model_len = 16384: the model was made for 8192 tokens. Set it to at most "
        "8192, or set max_position_embeddings in hf_overrides too.",
        Pool(
            {
                "max_model_len": 16384,
                "hf_overrides": {
                    "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
                    "max_position_embeddings": 16384,
                },
            }
        ),
    ),
    "n-grams of a GPU on a CPU": Case(
        Pool({"speculative_config": N_GRAMS_OF_A_GPU}, env={"VLLM_CPU_KVCACHE_SPACE": "4"}),
        "engine_args.speculative_config.method = ngram_gpu: vLLM's CPU build cannot run it. Write "
        "ngram.",
        Pool({"speculative_config": N_GRAMS_OF_A_GPU}, gpu="A100-80G"),
    ),
    "a draft of other words": Case(
        Pool({"speculative_config": SPECULATES}, draft={"vocab_size": 32001}),
        "engine_args.speculative_config.model = {draft}: its vocabulary has 32001 tokens, the "
        "model's 32000. "
        "Use a draft of the same family, or method: ngram.",
        Pool({"speculative_config": SPECULATES}, draft={}),
    ),
    "a draft that GPUs do not divide": Case(
        Pool(
            {"tensor_parallel_size": 4, "speculative_config": SPECULATES},
            draft={"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576},
        ),
        "engine_args.speculative_config.model = {draft}: tensor_parallel_size 4 does not divide "
        "the model's 9 attention heads. Use another draft, or method: ngram.",
        Pool({"tensor_parallel_size": 4, "speculative_config": SPECULATES}, draft={}),
    ),
    "a draft on fewer GPUs": Case(
        Pool(
            {
                "tensor_parallel_size": 2,
                "speculative_config": {**SPECULATES, "draft_tensor_parallel_size": 1},
            },
            draft={},
        ),
        "engine_args.speculative_config.draft_tensor_parallel_size = 1: vLLM runs a draft model on "
        "as many GPUs as the model, 2. Leave it out.",
        Pool({"tensor_parallel_size": 2, "speculative_config": SPECULATES}, draft={}),
    ),
    "a head on fewer GPUs": Case(
        Pool(
            {
                "tensor_parallel_size": 4,
                "speculative_config": {**HEAD, "draft_tensor_parallel_size": 2},
            },
            draft={"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1},
        ),
        "engine_args.speculative_config.draft_tensor_parallel_size = 2: vLLM runs a draft on one "
        "GPU or on as many GPUs as the model, 4. Leave it out.",
        Pool(
            {
                "tensor_parallel_size": 4,
                "speculative_config": {**HEAD, "draft_tensor_parallel_size": 1},
            },
            draft={"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1},
        ),
    ),
    "a type that no kernel computes in": Case(
        Pool({"dtype": "float32"}, quantization=quantized("awq")),
        "engine_args.dtype = float32: vLLM's kernels for awq compute in float16 or bfloat16. Write "
        "float16, or leave it out.",
        Pool({"dtype": "half"}, quantization=quantized("awq")),
    ),
    "4 bits in float32": Case(
        Pool({"dtype": "float32"}, quantization=compressed(4, "int", None, 64)),
        "engine_args.dtype = float32: vLLM's kernels for compressed-tensors compute in float16 or "
        "bfloat16. Write float16, or leave it out.",
        Pool({"dtype": "float32"}, quantization=INT8),
    ),
    "bfloat16 on Turing": Case(
        Pool({"dtype": "bfloat16"}, gpu="T4"),
        "engine_args.dtype = bfloat16: the T4 has no bfloat16, which requires capability 8.0. "
        "Write float16.",
        Pool({"dtype": "float16"}, gpu="T4"),
    ),
    "an fp8 cache on Turing": Case(
        Pool({"kv_cache_dtype": "fp8"}, gpu="T4"),
        "engine_args.kv_cache_dtype = fp8: vLLM has no attention kernel that reads an FP8 cache "
        "on the T4. Write auto.",
        Pool({"kv_cache_dtype": "auto"}, gpu="T4"),
    ),
    "a backend that reads no scales": Case(
        Pool(
            {"kv_cache_dtype": "int8_per_token_head", "attention_backend": "FLASH_ATTN"},
            gpu="A100-80G",
        ),
        "engine_args.attention_backend = FLASH_ATTN: it cannot read a cache of "
        "int8_per_token_head: among vLLM's backends only TRITON_ATTN can. Write TRITON_ATTN, or "
        "leave it out.",
        Pool(
            {"kv_cache_dtype": "int8_per_token_head", "attention_backend": "TRITON_ATTN"},
            gpu="A100-80G",
        ),
    ),
    "a backend in attention_config": Case(
        Pool(
            {
                "kv_cache_dtype": "int4_per_token_head",
                "attention_config": {"backend": "FLASHINFER"},
            },
            gpu="A100-80G",
        ),
        "engine_args.attention_config.backend = FLASHINFER: it cannot read a cache of "
        "int4_per_token_head: among vLLM's backends only TRITON_ATTN can. Write TRITON_ATTN, or "
        "leave it out.",
        Pool({"kv_cache_dtype": "int4_per_token_head"}, gpu="A100-80G"),
    ),
    "a backend that reads no fp8 on Ampere": Case(
        Pool({"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN"}, gpu="A100-80G"),
        "engine_args.attention_backend = TRITON_ATTN: it cannot read an FP8 cache on the "
        "A100-80G. Leave "
        "it out, or write auto there.",
        Pool({"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN"}, gpu="H100"),
    ),
    "fp8 with scales on Ampere": Case(
        Pool({"kv_cache_dtype": "fp8_per_token_head"}, gpu="A100-80G"),
        "engine_args.kv_cache_dtype = fp8_per_token_head: vLLM's Triton kernels read no FP8 on the "
        "A100-80G, which has no FP8. Write int8_per_token_head.",
        Pool({"kv_cache_dtype": "int8_per_token_head"}, gpu="A100-80G"),
    ),
    "a cache with scales on CPUs": Case(
        Pool({"kv_cache_dtype": "int8_per_token_head"}, env={"VLLM_CPU_KVCACHE_SPACE": "1"}),
        "engine_args.kv_cache_dtype = int8_per_token_head: vLLM's CPU build has no attention "
        "kernel that reads such a cache. Write auto or fp8.",
        Pool({"kv_cache_dtype": "fp8"}, env={"VLLM_CPU_KVCACHE_SPACE": "1"}),
    ),
    "a context that not even 4 bit hold": Case(
        Pool(
            {
                "kv_cache_dtype": "int4_per_token_head",
                "kv_cache_memory_bytes": GB // 4,
                "max_model_len": 8192,
            },
            gpu="A100-80G",
        ),
        "engine_args.max_model_len = 8192: the KV cache of one request of 8192 tokens takes "
        "0.3 GiB, but only 0.2 GiB are left (kv_cache_memory_bytes). Set max_model_len to at most "
        "7168, or give it more memory.",
        Pool(
            {
                "kv_cache_dtype": "int4_per_token_head",
                "kv_cache_memory_bytes": GB // 3,
                "max_model_len": 8192,
            },
            gpu="A100-80G",
        ),
    ),
}
