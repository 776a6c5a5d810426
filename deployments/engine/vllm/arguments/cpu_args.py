"""Arguments that vLLM's CPU build needs with other values than its own, in 0.32."""

from __future__ import annotations

import os

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from deployments.engine.vllm.arguments.cores import are_unbound

ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


def needs_no_worker(args: AsyncEngineArgs) -> bool:
    """Return whether the model may run in the engine's own process, without another import of vLLM.

    vLLM's CPU build always starts a worker, which it can bind to cores, even with the word `uni`.
    Without binding and with one worker, that wastes a third of every start and of the memory, and
    each step passes through shared memory.
    """
    return (
        current_platform.is_cpu()
        and args.distributed_executor_backend is None
        and args.tensor_parallel_size * args.pipeline_parallel_size == 1
        and are_unbound(os.environ)
    )
