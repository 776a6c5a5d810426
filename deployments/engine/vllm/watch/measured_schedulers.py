"""vLLM's schedulers behind `speculation.Measured`, in a separate file, because it imports them."""

from typing import get_args

from vllm.config.speculative import MTPModelTypes
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from deployments.engine.vllm.watch.measured_speculation import TAKE_ANY_NUMBER, Measured


class _Measured(Measured):
    take_any_number = TAKE_ANY_NUMBER | set(get_args(MTPModelTypes))


class MeasuredScheduler(_Measured, Scheduler):  # type: ignore[misc]  # vLLM's types are not read
    pass


class MeasuredAsyncScheduler(_Measured, AsyncScheduler):  # type: ignore[misc]
    pass
