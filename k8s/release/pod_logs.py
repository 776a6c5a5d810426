"""Logs of the pods of a release, by the time of their lines.

The logs are those of each pod's first container. In Ray's pods,
`deployments.process.log_to_stdout` copies the logs of Ray's processes to its stdout.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from common.errors import Problem
from k8s.client.cluster import Cluster, Object
from k8s.release.release import release_name

# Pods whose logs are read at the same time.
_AT_ONCE = 8
Wanted = Callable[[str], bool]


@dataclass(frozen=True)
class PodLine:
    """A line of a pod. `stamp` is Kubernetes' time; stamps of one pod have the same format."""

    stamp: str
    pod: str
    text: str

    @property
    def written_at(self) -> float:
        """In epoch seconds."""
        return datetime.fromisoformat(self.stamp).timestamp()


def pods_of(
    cluster: Cluster, service: Object, components: Sequence[str], pool: str = ""
) -> list[Object]:
    """Return the pods of these components; with a pool, only its engines. Raises Denied."""
    labels = f"app.kubernetes.io/instance={release_name(service)}"
    labels += f",antefix/component in ({','.join(components)})"
    found = cluster.list("pods", "", service["metadata"]["namespace"], labels)
    return [pod for pod in found if not pool or label(pod, "pool") in ("", pool)]


def label(pod: Object, name: str) -> str:
    """Return a label of the chart's; empty if the pod has none."""
    return str(pod["metadata"]["labels"].get(f"antefix/{name}", ""))


@dataclass
class PodLogs:
    """Reads logs.

    `wanted` returns the filter of a pod's lines. Lines older than `since_s` seconds are left out;
    0: none are. New pods are found, and lost connections replaced, every `look_s` seconds.
    """

    cluster: Cluster
    wanted: Callable[[Object], Wanted]
    since_s: int = 0
    look_s: float = 3.0
    # The last line that was read of each pod.
    _latest: dict[str, str] = field(default_factory=dict)

    def read(self, pods: Sequence[Object], tail: int | None) -> list[PodLine]:
        """Return the lines, the oldest first.

        With `tail`, each pod's log is read only from that number of lines before its end. Raises
        Problem.
        """
        # one line of a pod is needed to know where to follow it
        options = {} if tail is None else {"tailLines": str(max(1, tail))}
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = threads.map(lambda pod: list(self._lines(pod, options)), pods)
            lines = [line for of_pod in found for line in of_pod]
        return sorted(lines, key=lambda line: line.written_at)

    def follow(self, pods: Callable[[], list[Object]]) -> Iterator[PodLine]:
        """Yield new lines as they arrive, also those of pods that start later. Raises Problem."""
        arrived: queue.Queue[PodLine] = queue.Queue()
        following: dict[str, threading.Thread] = {}

        def pass_on(pod: Object) -> None:
            with suppress(Problem):  # it is tried again
                for line in self._lines(pod, {"follow": "true"}):
                    arrived.put(line)

        while True:
            for pod in pods():
                name = pod["metadata"]["name"]
                if name not in following or not following[name].is_alive():
                    following[name] = threading.Thread(target=pass_on, args=(pod,), daemon=True)
                    following[name].start()
            looks_again = time.monotonic() + self.look_s
            while (left := looks_again - time.monotonic()) > 0:
                with suppress(queue.Empty):
                    yield arrived.get(timeout=left)

    def _lines(self, pod: Object, options: dict[str, str]) -> Iterator[PodLine]:
        """Yield the wanted lines after the last one that was read."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        container, wanted = pod["spec"]["containers"][0]["name"], self.wanted(pod)
        if last := self._latest.get(name, ""):
            options = {**options, "sinceTime": last}
        elif self.since_s:
            options = {**options, "sinceSeconds": str(self.since_s)}
        for line in self.cluster.log(name, container, namespace, timestamps="true", **options):
            stamp, _, text = line.partition(" ")
            if stamp > last:
                self._latest[name] = stamp
                if wanted(text):
                    yield PodLine(stamp, name, text)
