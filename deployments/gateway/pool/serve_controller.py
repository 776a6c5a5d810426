"""The last answers of Ray Serve's controller, fetched in the background.

A controller that is stopped or lost leaves whoever asks it waiting for ever. So a question is put
once at a time, in a thread of its own, and everybody reads its last answer: what a gateway serves
needs no controller.
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

# Unasked for, an answer gets so old.
ASK_PERIOD_S = 5.0
# An answer that somebody reads is no older, unless the controller takes longer than PATIENCE_S.
FRESH_S = 1.0
PATIENCE_S = 0.5
# From then on nobody waits for it, and it is logged.
LATE_S = 5.0


class Late(Exception):
    """The controller takes longer than LATE_S to answer."""


class Status(NamedTuple):
    """`states` are replica counts by state, by deployment; `all_run` says of all applications that
    every replica is there."""

    states: Mapping[str, Mapping[str, int]]
    all_run: bool = False


# Deployment -> replica id -> the address of its node.
Running = Mapping[str, Mapping[str, str]]


class Starting(NamedTuple):
    """A replica that starts. `asked_at`: when Ray Serve requested its process, in epoch seconds;
    `placed`: there is one, on a node that had room."""

    asked_at: float
    placed: bool


class Replicas(NamedTuple):
    """One deployment's replicas, without those that stop. `able`: how many Ray Serve sends requests
    to, or did until its controller began again. `starting`: by replica id."""

    able: int
    starting: Mapping[str, Starting]


# By deployment.
AllReplicas = Mapping[str, Replicas]


class Question(Generic[Answer]):
    """`last` is the last answer, to the question of `as_of` of the loop's clock. `ask` may block
    for ever; it is called each `period_s` without a caller, None: never."""

    def __init__(self, ask: Callable[[], Answer], before: Answer, period_s: float | None) -> None:
        self._ask = ask
        self._period_s = period_s
        self.last = before
        self.as_of = float("-inf")
        self._asked_at = float("-inf")
        self._said_at = float("-inf")
        self._is_late = False
        self._wanted = asyncio.Event()
        self._said = asyncio.Event()
        self._asked: asyncio.Future[Answer] | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        await forever(
            "serve_controller",
            self._step,
            fails="Ray Serve's controller does not say what runs",
            logger=logger,
            outages=(Late, RayError, RayServeException),
        )

    async def latest(self) -> Answer:
        """The last answer; where that is old, a new one if it comes within PATIENCE_S."""
        if asyncio.get_running_loop().time() - self._said_at > FRESH_S:
            self._said.clear()
            self._wanted.set()
            if not self._is_late:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_S):
                        await self._said.wait()
        return self.last

    async def _step(self) -> None:
        if self._asked is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._wanted.wait()
            self._wanted.clear()
            self._asked_at = asyncio.get_running_loop().time()
            self._asked = asyncio.wrap_future(_in_thread(self._ask))
        await asyncio.wait({self._asked}, timeout=LATE_S)
        self._is_late = True
        if not self._asked.done():
            raise Late(f"it has not answered within {LATE_S:g} s")
        question, self._asked = self._asked, None
        self.last, self.as_of = question.result(), self._asked_at
        self._is_late, self._said_at = False, asyncio.get_running_loop().time()
        self._said.set()


class ServeController:
    """Its questions; `running` and `replicas` are fetched only for a caller."""

    def __init__(self) -> None:
        self.status = Question(ask_status, Status({}), ASK_PERIOD_S)
        nobody: Running = {}
        self.running = Question(ask_running, nobody, None)
        nothing: AllReplicas = {}
        self.replicas = Question(ask_replicas, nothing, None)

    async def run(self) -> None:
        """Ask until cancelled."""
        await asyncio.gather(self.status.run(), self.running.run(), self.replicas.run())


def ask_status() -> Status:
    """Blocks while Ray Serve's controller does not answer."""
    applications = _applications(raises=False)
    states = {
        name: Counter(replica["state"].value for replica in replicas)
        for name, replicas in _replicas_in(applications).items()
    }
    found = [application["status"] for application in applications.values()]
    return Status(states, bool(found) and all(one == ApplicationStatus.RUNNING for one in found))


def ask_running() -> Running:
    """Blocks while Ray Serve's controller does not answer."""
    return {
        name: {
            each["replica_id"]: each["node_ip"] for each in replicas if each["state"] == "RUNNING"
        }
        for name, replicas in _replicas_in(_applications()).items()
    }


def ask_replicas() -> AllReplicas:
    """Blocks while Ray Serve's controller does not answer."""
    found = _replicas_in(_applications())
    return {name: replicas_of(replicas) for name, replicas in found.items()}


def replicas_of(details: Sequence[Mapping[str, Any]]) -> Replicas:
    """From what Ray Serve tells of a deployment's replicas (`ray.serve.schema.ReplicaDetails`)."""
    starting = {
        replica["replica_id"]: Starting(replica["start_time_s"], replica.get("pid") is not None)
        for replica in details
        if replica["state"] == "STARTING"
    }
    able = sum(replica["state"] not in ("STARTING", "STOPPING", "STOPPED") for replica in details)
    return Replicas(able, starting)


def _applications(raises: bool = True) -> Mapping[str, Mapping[str, Any]]:
    """What Ray Serve tells of each application, by name. `raises`: where there is no controller.

    `serve.status()` asks for the same, and its models take 15 ms of CPU instead of 1 (Ray 2.60).
    """
    if not ray.is_initialized():  # else asking would start one
        return {}
    client = _get_global_client(raise_if_no_controller_running=raises)
    found: Mapping[str, Mapping[str, Any]]
    found = {} if client is None else client.get_serve_details()["applications"]
    return found


def _replicas_in(
    applications: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """What Ray Serve tells of each of our replicas, by deployment."""
    return {
        name: deployment["replicas"]
        for application_name, application in applications.items()
        if is_application(application_name)
        for name, deployment in application["deployments"].items()
    }


def _in_thread(ask: Callable[[], Answer]) -> Future[Answer]:
    """In a daemon thread: one of an executor's would keep the process from ending."""
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
