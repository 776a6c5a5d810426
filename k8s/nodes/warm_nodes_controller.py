"""Controller of the placeholder pods that keep GPU nodes warm: `python -m
k8s.nodes.warm_nodes_controller`.

Every PERIOD_S the process with the Lease asks a gateway for the autoscaler's forecast and
Kubernetes for the engines' pods. It scales each pool's placeholders as `k8s.nodes.warm_nodes`
decides. If a question fails, nothing changes, and it is repeated. ANTEFIX_WARM_NODES contains
`Settings` as JSON, written by the chart.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from k8s.nodes.leadership import KUBERNETES_FAILURES, TIMEOUT_S, Leadership, impatient, said
from k8s.nodes.warm_nodes import Expected, PodCounts, WarmNodesLimits, WarmNodesPool, decide

logger = logging.getLogger("antefix.warm_nodes")

PERIOD_S = 15.0
WRITE_ATTEMPTS = 3
CONFLICT = 409


class JsonFormatter(logging.Formatter):
    """Format one JSON object per line, with the field names of gateways and engines."""

    def format(self, record: logging.LogRecord) -> str:
        written = datetime.fromtimestamp(record.created, UTC)
        line = {
            "timestamp": written.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "component": "warm-nodes",
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class NoStatus(Exception):
    """A gateway did not return a forecast."""


@dataclass(frozen=True)
class Settings:
    """`name` is the chart's full name, `engines` the label selector of the engines' pods."""

    name: str
    namespace: str
    engines: str
    status_url: str
    gpu_resource: str
    max_per_pool: int
    pools: tuple[WarmNodesPool, ...]
    gpu_budget: float | None = None

    def placeholders(self, pool: str) -> str:
        """Return the name of the Deployment."""
        return f"{self.name}-placeholder-{pool}"


@dataclass(frozen=True)
class PoolStatus:
    autoscaler: Expected | None = None


@dataclass(frozen=True)
class FleetStatus:
    """Read `GET /antefix/status`."""

    pools: dict[str, PoolStatus]


class Controller:
    """Scales the placeholders once per `step`."""

    def __init__(
        self, api: client.ApiClient, settings: Settings, leadership: Leadership, api_keys: Path
    ) -> None:
        self._settings = settings
        self._leadership = leadership
        self._api_keys = api_keys
        self._pods = client.CoreV1Api(api)
        self._deployments = client.AppsV1Api(api)
        self._http = urllib3.PoolManager(retries=False, timeout=TIMEOUT_S)
        self._too_many_since: Mapping[str, float] = {}
        self._missing = ""

    def step(self) -> None:
        """Run one step. Raises one of KUBERNETES_FAILURES."""
        settings, now = self._settings, time.monotonic()
        pods = self._engine_pods()
        expected = self._expected()
        present = [pod.metadata.labels.get("antefix/pool") for pod in pods]
        seen = {
            pool.name: PodCounts(
                present.count(pool.name), self._size(pool), expected.get(pool.name)
            )
            for pool in settings.pools
        }
        used = sum(gpus_of(pod, settings.gpu_resource) for pod in pods)
        limits = WarmNodesLimits(
            max_per_pool=settings.max_per_pool,
            free_gpus=float("inf") if settings.gpu_budget is None else settings.gpu_budget - used,
            engine_waits=any(waits_for_gpu(pod, settings.gpu_resource) for pod in pods),
        )
        decision = decide(settings.pools, seen, limits, self._too_many_since, now)
        for pool in settings.pools:
            wanted, now_there = decision.placeholders[pool.name], seen[pool.name].placeholders
            if wanted == now_there:
                continue
            if not self._resize(pool, wanted):
                return
            logger.info(
                "scaled placeholders of %s from %d to %d: %s",
                *(pool.name, now_there, wanted, _why(seen[pool.name], limits)),
            )
        self._too_many_since = decision.too_many_since

    def _engine_pods(self) -> list[Any]:
        listed = self._pods.list_namespaced_pod(
            self._settings.namespace, label_selector=self._settings.engines
        )
        return [pod for pod in listed.items if stays(pod)]

    def _size(self, pool: WarmNodesPool) -> int:
        scale = self._deployments.read_namespaced_deployment_scale(
            self._settings.placeholders(pool.name), self._settings.namespace
        )
        return (scale.spec.replicas if scale.spec else 0) or 0

    def _resize(self, pool: WarmNodesPool, replicas: int) -> bool:
        """Scale a Deployment. Return false if another process may lead by now, and nothing was
        written."""
        scale, conflicts = {"spec": {"replicas": replicas}}, 0
        while self._leadership.holds():
            try:
                self._deployments.patch_namespaced_deployment_scale(
                    self._settings.placeholders(pool.name), self._settings.namespace, scale
                )
            except ApiException as error:
                conflicts += 1
                if error.status != CONFLICT or conflicts == WRITE_ATTEMPTS:
                    raise
            else:
                return True
        return False

    def _expected(self) -> Mapping[str, Expected]:
        """Return the expectations by pool. Pools without a decision are missing; it is empty if no
        gateway answers."""
        try:
            pools = self._status().pools
        except NoStatus as missing:
            self._say(f"failed to read the forecast; keeping placeholders: {missing}")
            return {}
        self._say("")
        return {name: pool.autoscaler for name, pool in pools.items() if pool.autoscaler}

    def _status(self) -> FleetStatus:
        try:
            headers = {"Authorization": f"Bearer {first_key(self._api_keys.read_text())}"}
            answer = self._http.request("GET", self._settings.status_url, headers=headers)
            if answer.status != 200:
                raise NoStatus(f"{self._settings.status_url} answered {answer.status}")
            return msgspec.json.decode(answer.data, type=FleetStatus)
        except (OSError, urllib3.exceptions.HTTPError, msgspec.MsgspecError) as error:
            raise NoStatus(f"{self._settings.status_url}: {error}") from None
        except ValueError:  # the error's message may contain the key
            raise NoStatus(f"{self._api_keys} contains no usable key") from None

    def _say(self, missing: str) -> None:
        if missing and missing != self._missing:
            logger.warning("%s", missing)
        elif self._missing and not missing:
            logger.info("received a forecast again")
        self._missing = missing


def _why(seen: PodCounts, limits: WarmNodesLimits) -> str:
    """Return what decided the number of placeholders, for the log."""
    facts = [f"{seen.pods} engine pods", f"at most {limits.max_per_pool} placeholders per pool"]
    if seen.expected is not None:
        facts.append(f"the autoscaler wants {seen.expected.demand} replicas")
    if limits.free_gpus < float("inf"):
        facts.append(f"{limits.free_gpus:g} GPUs of the budget are free")
    if limits.engine_waits:
        facts.append("an engine waits for a GPU")
    return ", ".join(facts)


def first_key(text: str) -> str:
    """Return the first usable key of `tenant=key` lines or comma-separated entries, without `#`
    comments.

    Empty if there is none. A salted hash is not usable.
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    entries = (entry.strip() for line in lines for entry in line.split(","))
    keys = (entry.partition("=")[2].strip() for entry in entries if not entry.startswith("#"))
    return next((key for key in keys if key and not key.startswith("sha256:")), "")


def stays(pod: Any) -> bool:
    return pod.metadata.deletion_timestamp is None and pod.status.phase in ("Pending", "Running")


def gpus_of(pod: Any, resource: str) -> int:
    given = [container.resources for container in pod.spec.containers]
    return sum(int((of.limits or {}).get(resource, 0)) for of in given if of)


def waits_for_gpu(pod: Any, resource: str) -> bool:
    """Return whether the scheduler found no node with enough of the resource."""
    return any(
        condition.type == "PodScheduled"
        and condition.status == "False"
        and f"Insufficient {resource}" in (condition.message or "")
        for condition in pod.status.conditions or []
    )


def run(
    controller: Controller,
    leadership: Leadership,
    stop: threading.Event,
    period_s: float = PERIOD_S,
) -> None:
    while not stop.is_set():
        if leadership.renew():
            try:
                controller.step()
            except KUBERNETES_FAILURES as error:
                logger.warning(
                    "failed to reach the Kubernetes API; keeping placeholders: %s", said(error)
                )
        stop.wait(period_s)


def main() -> None:
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[to_stderr])
    # it logs each renewal
    logging.getLogger("leaderelection").setLevel(logging.WARNING)
    settings = msgspec.json.decode(os.environ["ANTEFIX_WARM_NODES"], type=Settings)
    configuration = client.Configuration()
    config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    api = impatient(client.ApiClient(configuration))
    lease = f"{settings.name}-warm-nodes"
    leadership = Leadership(api, lease, settings.namespace, socket.gethostname())
    controller = Controller(api, settings, leadership, Path(os.environ["ANTEFIX_API_KEYS_FILE"]))
    stop = threading.Event()
    # the first process of a container ignores SIGTERM without a handler
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    run(controller, leadership, stop)


if __name__ == "__main__":
    main()
