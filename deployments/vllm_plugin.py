"""What Antefix changes in vLLM's own processes; loaded there as a plugin (vllm.general_plugins).

Only the CPU build is changed: on GPUs vLLM runs as it is.
"""

from __future__ import annotations

# A notice may get lost; vLLM itself looks again after 5 s.
LOOK_AGAIN_MS = 20


def register() -> None:
    """Let processes that wait for each other sleep, where engines have no cores of their own.

    vLLM's engine and workers poll shared memory and yield, each for a second after it last read
    something (`SpinCondition`). On a CPU that is time taken from the engine's own computing and
    from everybody else's: on Linux 6.18, beside four such engines on two cores, a process that
    wanted to run now and then waited for over a second. After that second they sleep until
    they are told; here they do so from the start. Source: vllm/distributed/device_communicators/
    shm_broadcast.py of vLLM 0.32.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    init, wait = SpinCondition.__init__, SpinCondition.wait

    def init_without_spinning(
        self: SpinCondition, is_reader: bool, context: object, notify_address: str
    ) -> None:
        init(self, is_reader, context, notify_address, busy_loop_s=0)

    def wait_briefly(self: SpinCondition, timeout_ms: int | None = None) -> None:
        wait(self, LOOK_AGAIN_MS if timeout_ms is None else min(timeout_ms, LOOK_AGAIN_MS))

    SpinCondition.__init__ = init_without_spinning
    SpinCondition.wait = wait_briefly
