"""Engine arguments that a fleet file may not set, because Antefix sets them or replaces them.

Keys are vLLM's flags with underscores. A key that ends in `*` stands for every flag with this
prefix. Each value gives the reason and the remedy.
"""

_GATEWAY_LISTENS = (
    "The gateway listens for HTTP, and the engine does not. Set gateway.host and gateway.port."
)
_TLS_IN_FRONT = "Gateways use plain HTTP to reach engines. Terminate TLS in front of the gateway."
_GATEWAY_HTTP = "The gateway serves HTTP, so this has no effect. Leave it out."
_REPLICAS = "Antefix distributes requests to replicas itself. Set replicas in the pool."
_RAY_PLACES = (
    "Ray places the processes of a replica. Set tensor_parallel_size or pipeline_parallel_size."
)

RESERVED_ENGINE_ARGS = {
    "model": "Set model in the pool, next to engine_args.",
    "model_tag": "Set model in the pool, next to engine_args.",
    "served_model_name": "Set served_model_name in the pool, next to engine_args.",
    "kv_events_config": "Antefix configures the KV events that feed its index. Leave it out.",
    "hf_token": "Do not write a secret here. Set HF_TOKEN in the env of the pool to ${HF_TOKEN}.",
    "api_key": "The gateway holds the API keys. Leave it out.",
    "config": "The fleet file is the only configuration. Write the settings into engine_args.",
    "host": _GATEWAY_LISTENS,
    "port": _GATEWAY_LISTENS,
    "uds": _GATEWAY_LISTENS,
    "grpc": "The gateway serves the OpenAI API over HTTP only. Leave it out.",
    "grpc_port": "The gateway serves the OpenAI API over HTTP only. Leave it out.",
    "root_path": "Set the path in the proxy in front of the gateway. Leave it out.",
    "ssl_*": _TLS_IN_FRONT,
    "enable_ssl_refresh": _TLS_IN_FRONT,
    "allow_credentials": _GATEWAY_HTTP,
    "allowed_origins": _GATEWAY_HTTP,
    "allowed_methods": _GATEWAY_HTTP,
    "allowed_headers": _GATEWAY_HTTP,
    "middleware": _GATEWAY_HTTP,
    "enable_request_id_headers": _GATEWAY_HTTP,
    "disable_fastapi_docs": _GATEWAY_HTTP,
    "enable_offline_docs": _GATEWAY_HTTP,
    "h11_*": _GATEWAY_HTTP,
    "uvicorn_log_level": _GATEWAY_HTTP,
    "disable_uvicorn_access_log": _GATEWAY_HTTP,
    "disable_access_log_for_endpoints": _GATEWAY_HTTP,
    "tokens_only": "Antefix serves the OpenAI API, which this flag disables. Leave it out.",
    "headless": _REPLICAS,
    "api_server_count": _REPLICAS,
    "data_parallel_*": _REPLICAS,
    "dp_supervisor_*": _REPLICAS,
    "nnodes": _RAY_PLACES,
    "node_rank": _RAY_PLACES,
    "master_addr": _RAY_PLACES,
    "master_port": _RAY_PLACES,
    "disable_log_stats": "Routing and metrics need the engine's statistics. Leave it out.",
    "device_ids": "Ray chooses the GPUs of a replica. Set resources in the pool.",
}

RESERVED_ENV = {
    "CUDA_VISIBLE_DEVICES": "Ray chooses the GPUs of a replica. Set resources in the pool.",
    "PYTHONHASHSEED": "Antefix sets it, so that all replicas compute the same hashes of prefixes. "
    "Leave it out.",
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "Antefix sets it for its prefix index. Leave it out.",
    "VLLM_API_KEY": "The gateway holds the API keys. Leave it out.",
    "VLLM_MAX_N_SEQUENCES": "The gateway limits n. Set gateway.max_n.",
    "VLLM_ENABLE_RESPONSES_API_STORE": "Replicas do not share stored responses, and tenants must "
    "not share them either. Leave it out.",
}


def why_reserved(engine_arg: str) -> str | None:
    """Return the reason and remedy for a reserved engine argument; None for one that is free."""
    for name, reason in RESERVED_ENGINE_ARGS.items():
        if engine_arg == name or (name.endswith("*") and engine_arg.startswith(name[:-1])):
            return reason
    return None
