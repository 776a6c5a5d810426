"""The last answers of Ray Serve's controller, fetched in the background.

A call to a stopped or lost controller never returns. So each question has one call at a time, in a
separate thread, and callers read the last answer. Requests do not need the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, TypeVar

import ray
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from common.loops import forever
from deployments.fleet.applications import is_application

logger = logging.getLogger("ray.serve")

Answer = TypeVar("Answer")

# The period of questions without a caller.
ASK_PERIOD_S = 5.0
# The maximum age of an answer for a caller, unless the controller takes longer than PATIENCE_S.
FRESH_S = 1.0
PATIENCE_S = 0.5
# After this time callers stop waiting for the controller, and the delay is logged.
LATE_S = 5.0


class Late(Exception):
    """The controller takes longer than LATE_S to answer."""


class Status(NamedTuple):
    """Numbers of replicas by deployment and state. `all_run`: all applications are RUNNING."""

    states: Mapping[str, Mapping[str, int]]
    all_run: bool = False


# Deployment -> replica id -> the address of its node.
Running = Mapping[str, Mapping[str, str]]


class Starting(NamedTuple):
    """A replica that starts.

    `asked_at`: the Unix time at which Ray Serve requested its process. `placed`: the process runs,
    on a node that had room.
    """

    asked_at: float
    placed: bool


class Replicas(NamedTuple):
    """One deployment's replicas, without those that stop.

    `able`: the number that Ray Serve sends requests to, or did until its controller restarted.
    `starting`: by replica id.
    """

    able: int
    starting: Mapping[str, Starting]


# By deployment.
AllReplicas = Mapping[str, Replicas]


class Question(Generic[Answer]):
    """A question to the controller, and its last answer.

    `last`: the last answer; `as_of`: when it was requested, in the loop's time. `ask` may block
    forever. Without callers it runs every `period_s` seconds; None: never.
    """

    def __init__(self, ask: Callable[[], Answer], before: Answer, period_s: float | None) -> None:
        self._ask = ask
        self._period_s = period_s
        self.last = before
        self.as_of = float("-inf")
        self._requested_at = float("-inf")
        self._answered_at = float("-inf")
        self._is_late = False
        self._wanted = asyncio.Event()
        self._answered = asyncio.Event()
        self._pending: asyncio.Future[Answer] | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        await forever(
            "serve_controller",
            self._step,
            fails="failed to read from Ray Serve's controller what runs",
            logger=logger,
            outages=(Late, RayError, RayServeException),
        )

    async def latest(self) -> Answer:
        """Return the last answer, or if it is too old, a new one that arrives within PATIENCE_S."""
        if asyncio.get_running_loop().time() - self._answered_at > FRESH_S:
            self._answered.clear()
            self._wanted.set()
            if not self._is_late:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_S):
                        await self._answered.wait()
        return self.last

    async def _step(self) -> None:
        if self._pending is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._wanted.wait()
            self._wanted.clear()
            self._requested_at = asyncio.get_running_loop().time()
            self._pending = asyncio.wrap_future(_in_thread(self._ask))
        await asyncio.wait({self._pending}, timeout=LATE_S)
        self._is_late = True
        if not self._pending.done():
            raise Late(f"it has not answered within {LATE_S:g} s")
        call, self._pending = self._pending, None
        self.last, self.as_of = call.result(), self._requested_at
        self._is_late, self._answered_at = False, asyncio.get_running_loop().time()
        self._answered.set()


class ServeController:
    """The questions to the controller. `running` and `replicas` are fetched only for callers."""

    def __init__(self) -> None:
        self.status = Question(ask_status, Status({}), ASK_PERIOD_S)
        no_running: Running = {}
        self.running = Question(ask_running, no_running, None)
        no_replicas: AllReplicas = {}
        self.replicas = Question(ask_replicas, no_replicas, None)

    async def run(self) -> None:
        """Ask until cancelled."""
        await asyncio.gather(self.status.run(), self.running.run(), self.replicas.run())


def ask_status() -> Status:
    """Return the applications' status. Blocks while Ray Serve's controller does not answer."""
    applications = _applications(raises=False)
    states = {
        name: Counter(replica["state"].value for replica in replicas)
        for name, replicas in _replicas_in(applications).items()
    }
    found = [application["status"] for application in applications.values()]
    all_run = bool(found) and all(status == ApplicationStatus.RUNNING for status in found)
    return Status(states, all_run)


def ask_running() -> Running:
    """Return the running replicas. Blocks while Ray Serve's controller does not answer."""
    return {
        name: {
            each["replica_id"]: each["node_ip"] for each in replicas if each["state"] == "RUNNING"
        }
        for name, replicas in _replicas_in(_applications()).items()
    }


def ask_replicas() -> AllReplicas:
    """Return all pools' replicas. Blocks while Ray Serve's controller does not answer."""
    found = _replicas_in(_applications())
    return {name: replicas_of(replicas) for name, replicas in found.items()}


def replicas_of(details: Sequence[Mapping[str, Any]]) -> Replicas:
    """Return a deployment's replicas, from Ray Serve's `ray.serve.schema.ReplicaDetails`."""
    starting = {
        replica["replica_id"]: Starting(replica["start_time_s"], replica.get("pid") is not None)
        for replica in details
        if replica["state"] == "STARTING"
    }
    able = sum(replica["state"] not in ("STARTING", "STOPPING", "STOPPED") for replica in details)
    return Replicas(able, starting)


def _applications(raises: bool = True) -> Mapping[str, Mapping[str, Any]]:
    """Return Ray Serve's details of each application, by name.

    `raises`: raise RayServeException if there is no controller. `serve.status()` makes the same
    call, but its models take 15 ms of CPU instead of 1 (Ray 2.60).
    """
    if not ray.is_initialized():  # otherwise the call would start Ray
        return {}
    client = _get_global_client(raise_if_no_controller_running=raises)
    found: Mapping[str, Mapping[str, Any]]
    found = {} if client is None else client.get_serve_details()["applications"]
    return found


def _replicas_in(
    applications: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return Ray Serve's details of each replica of Antefix's applications, by deployment."""
    return {
        name: deployment["replicas"]
        for application_name, application in applications.items()
        if is_application(application_name)
        for name, deployment in application["deployments"].items()
    }


def _in_thread(ask: Callable[[], Answer]) -> Future[Answer]:
    """Run `ask` in a daemon thread. An executor's thread would keep the process from exiting."""
    answer: Future[Answer] = Future()

    def work() -> None:
        try:
            result = ask()
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    threading.Thread(target=work, daemon=True, name="serve_controller").start()
    return answer
