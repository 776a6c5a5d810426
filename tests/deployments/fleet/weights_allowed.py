"""Models and arguments that are warned of, with what is said, and such as pass without a word."""

from tests.deployments.fleet.weighed_pools import (
    EXPERTS,
    FP8,
    GB,
    SPECULATES,
    Case,
    Pool,
    compressed,
    quantized,
)

WARNED: dict[str, Case] = {
    "int8 for experts of a model without any": Case(
        Pool({"quantization": "int8_per_channel_weight_only"}, gpu="A100-80G"),
        "engine_args.quantization = int8_per_channel_weight_only: it quantizes only experts, and "
        "the model has none: its weights stay in 16 bit. Leave it out, and quantize the model "
        "first: antefix quantize --scheme w8a8-smoothquant.",
        Pool({"quantization": "int8_per_channel_weight_only"}, gpu="A100-80G", config=EXPERTS),
    ),
    "fp8 on Ampere": Case(
        Pool(gpu="A100-80G", quantization=FP8),
        "model = {model}: this GPU has no FP8 arithmetic (it has capability 8.0, but needs 8.9): "
        "the weights take half the memory, and the GPU computes in 16 bit. For speed in large "
        "batches use W8A8 INT8: antefix quantize --scheme w8a8-smoothquant.",
        Pool(gpu="H100", quantization=FP8),
    ),
    "fp8 on Ampere, made while it loads": Case(
        Pool({"quantization": "fp8_per_tensor"}, gpu="A100-80G"),
        "engine_args.quantization = fp8_per_tensor: this GPU has no FP8 arithmetic (it has "
        "capability 8.0, but needs 8.9): the weights take half the memory, and the GPU computes "
        "in 16 bit. For speed in large batches use W8A8 INT8: antefix quantize --scheme "
        "w8a8-smoothquant.",
        Pool({"quantization": "fp8_per_tensor"}, gpu="L4"),
    ),
    "awq by its old name": Case(
        Pool({"quantization": "awq"}, gpu="A100-80G", quantization=quantized("awq")),
        "engine_args.quantization = awq: in vLLM releases before the one Antefix pins, it selects "
        "a kernel several times slower than Marlin, which this GPU has. Leave it out, or write "
        "awq_marlin.",
        Pool({"quantization": "awq_marlin"}, gpu="A100-80G", quantization=quantized("awq")),
    ),
    "awq in groups that Marlin lacks": Case(
        Pool(gpu="A100-80G", quantization=quantized("awq", 16)),
        "model = {model}: Marlin, vLLM's fast kernel, supports groups of 32, 64 or 128, not of "
        "16; its replacement is several times slower. Quantize it again: antefix quantize "
        "--group-size 128.",
        Pool(gpu="A100-80G", quantization=quantized("awq", 64)),
    ),
    "awq without zero points": Case(
        Pool(gpu="A100-80G", quantization=quantized("awq", zero_point=False)),
        "model = {model}: AWQ without zero points has no Marlin kernel: vLLM's own AWQ kernel is "
        "several times slower. Quantize it with zero points: antefix quantize --scheme awq.",
        Pool(gpu="A100-80G", quantization=quantized("awq")),
    ),
    "a slow kernel by name": Case(
        Pool({"linear_backend": "exllama"}, gpu="A100-80G", quantization=quantized("gptq")),
        "engine_args.linear_backend = exllama: selects a slower kernel than vLLM's choice. "
        "Leave it out.",
        Pool({"linear_backend": "marlin"}, gpu="A100-80G", quantization=quantized("gptq")),
    ),
    "a slow kernel for experts by name": Case(
        Pool({"quantization": "moe_wna16"}, gpu="A100-80G", quantization=quantized("gptq")),
        "engine_args.quantization = moe_wna16: selects a slower kernel than Marlin, which this "
        "GPU has. Leave it out, or gptq_marlin.",
        Pool({"quantization": "gptq_marlin"}, gpu="A100-80G", quantization=quantized("gptq")),
    ),
    "awq in invariant batches": Case(
        Pool(gpu="H100", quantization=quantized("awq"), env={"VLLM_BATCH_INVARIANT": "1"}),
        "env.VLLM_BATCH_INVARIANT = '1': switches Marlin off for AWQ: several times slower. "
        "Leave it out.",
        Pool(gpu="H100", quantization=quantized("awq"), env={"VLLM_BATCH_INVARIANT": "0"}),
    ),
    "experts over GPUs": Case(
        Pool({"tensor_parallel_size": 2}, config=EXPERTS, quantization=quantized("awq")),
        "engine_args.tensor_parallel_size = 2: 704 of an expert's width of 1408 on each GPU is "
        "not a multiple of the quantization's groups of 128: vLLM uses a slower kernel for the "
        "experts. Lower it, or set enable_expert_parallel: true.",
        Pool(
            {"tensor_parallel_size": 2, "enable_expert_parallel": True},
            config=EXPERTS,
            quantization=quantized("awq"),
        ),
    ),
    "a memory that is tight": Case(
        Pool({"max_model_len": 4096}, gpu="L4", size=20 * GB),
        "engine_args.max_model_len = 4096: 18.6 GiB of weights, 0.5 GiB of KV cache for one "
        "request and a step's working memory likely exceed the 20.3 GiB of the L4 by 0.8 GiB. "
        "Lower it, or use more GPUs: antefix plan shows what fits.",
        Pool({"max_model_len": 4096}, gpu="L4", size=18 * GB),
    ),
    "a GPU of two sizes": Case(
        Pool(gpu="A100", size=60 * GB),
        "model = {model}: on the A100-40G, its weights take 55.9 GiB of each GPU, but vLLM may "
        "use only 36.4 GiB of the A100-40G. Set tensor_parallel_size to 2, or use fewer bits "
        "(antefix quantize) or a GPU with more memory.",
        Pool(gpu="A100-80G", size=60 * GB),
    ),
    "an fp8 cache on Ampere": Case(
        Pool({"kv_cache_dtype": "fp8"}, gpu="A100-80G"),
        "engine_args.kv_cache_dtype = fp8: the A100-80G has no FP8 arithmetic, and FlashAttention "
        "cannot read such a cache there: vLLM falls back to FlashInfer, which does not start "
        "without nvcc. Write auto, or int8_per_token_head, unless memory matters more than speed.",
        Pool({"kv_cache_dtype": "fp8"}, gpu="H100"),
    ),
}


ALLOWED: dict[str, Pool] = {
    "a longer context by the environment": Pool(
        {"max_model_len": 16384}, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    ),
    "a longer context by scaled positions": Pool(
        {
            "max_model_len": 16384,
            "hf_overrides": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        }
    ),
    "a longer context by another config": Pool(
        {"max_model_len": 16384, "hf_overrides": {"max_position_embeddings": 16384}}
    ),
    "a context that vLLM finds": Pool(
        {"max_model_len": -1}, gpu="L4", size=20 * GB, config={"max_position_embeddings": 131072}
    ),
    "a head of other words": Pool(
        {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 4}},
        draft={"architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 32001},
    ),
    "a draft of other words, mapped": Pool(
        {"speculative_config": {**SPECULATES, "use_heterogeneous_vocab": True}},
        draft={"vocab_size": 32001},
    ),
    "groups where a layer is left out": Pool(
        {"tensor_parallel_size": 4},
        quantization={
            **compressed(4, "int", None, 128),
            "ignore": ["lm_head", "re:.*mlp.down_proj"],
        },
    ),
    "a format that is not known here": Pool(gpu="H100", quantization={"quant_method": "quark"}),
    "copies of key-value heads": Pool({"tensor_parallel_size": 16}),
}
