"""A fleet as the controller of warm nodes sees it: the Kubernetes API and a gateway, over HTTP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from k8s.nodes.leadership import Leadership, impatient
from k8s.nodes.warm_nodes import WarmNodesPool
from k8s.nodes.warm_nodes_controller import Controller, Settings
from router.board.pool_demand import Decided
from tests.fakes.front import KEY
from tests.k8s.api import Api

NAMESPACE, GPU = "llm", "nvidia.com/gpu"
PLACEHOLDERS, LEASE = "afx-antefix-placeholder-big", "afx-antefix-warm-nodes"
STEADY = Decided(demand=2, target=2, because="in_flight", arrivals=5.0, forecast=5.0)
GROWING = Decided(demand=2, target=2, because="forecast", arrivals=5.0, forecast=10.0)

Object = dict[str, Any]


class Gateway:
    """Answers GET /antefix/status with what the autoscaler of the pool `big` decided."""

    def __init__(self) -> None:
        self.decided: Decided | None = STEADY
        self.key = KEY
        self.garbled = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.headers["Authorization"] == f"Bearer {outer.key}"
                self.send_response(200 if known and self.path == "/antefix/status" else 401)
                self.end_headers()
                told = msgspec.to_builtins({"pools": {"big": {"autoscaler": outer.decided}}})
                self.wfile.write(b"<html>" if outer.garbled else json.dumps(told).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/antefix/status"


class Fleet:
    """A namespace with a pool's pods and placeholders, and the controllers of it."""

    def __init__(self, api: Api, gateway: Gateway, keys: Path) -> None:
        self.api, self.gateway, self.keys = api, gateway, keys
        self.pods = 0
        api.add(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": LEASE, "namespace": NAMESPACE},
            },
            placeholders_of("big"),
        )
        self.settings = Settings(
            name="afx-antefix",
            namespace=NAMESPACE,
            engines="app.kubernetes.io/instance=afx,antefix/component=engine",
            status_url=gateway.url,
            gpu_resource=GPU,
            max_per_pool=3,
            pools=(WarmNodesPool("big", 1, max_replicas=8, warm_replicas=0, gpus_per_pod=4),),
        )

    def runs(self, pods: int, **more: Any) -> None:
        for _ in range(pods):
            self.pods += 1
            self.api.add(engine_pod(f"big-{self.pods}", **more))

    def controller(self, identity: str = "a") -> tuple[Controller, Leadership]:
        api = impatient(self.api.client())
        leadership = Leadership(api, LEASE, NAMESPACE, identity)
        return Controller(api, self.settings, leadership, self.keys), leadership

    @property
    def placeholders(self) -> int:
        replicas: int = self.api.get("Deployment", PLACEHOLDERS, NAMESPACE)["spec"]["replicas"]
        return replicas

    @property
    def leader(self) -> str | None:
        spec = self.api.get("Lease", LEASE, NAMESPACE).get("spec", {})
        holder: str | None = spec.get("holderIdentity")
        return holder

    @property
    def writes(self) -> list[tuple[str, str, str, str]]:
        return [call for call in self.api.calls if call[:2] == ("patch", "deployments/scale")]


def placeholders_of(pool: str, replicas: int = 0) -> Object:
    labels = {"antefix/component": "placeholder", "antefix/pool": pool}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"afx-antefix-placeholder-{pool}", "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "placeholder", "image": "pause"}]},
            },
        },
    }


def engine_pod(
    name: str, phase: str = "Running", waits_for: str = "", ending: bool = False
) -> Object:
    labels = {
        "app.kubernetes.io/instance": "afx",
        "antefix/component": "engine",
        "antefix/pool": "big",
    }
    limits = {"resources": {"limits": {GPU: "4"}}}
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": f"0/3 nodes are available: 3 {waits_for}.",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": labels,
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if ending else {}),
        },
        "spec": {"containers": [{"name": "ray-engine", "image": "engine", **limits}]},
        "status": {"phase": phase, "conditions": [condition] if waits_for else []},
    }


@contextmanager
def warm_fleet(folder: Path) -> Iterator[Fleet]:
    """Two engines' pods, no placeholders, and a gateway that expects no growth."""
    gateway, keys = Gateway(), folder / "api-keys"
    keys.write_text(f"default={KEY}\nother=sk-other\n")
    serving = threading.Thread(target=gateway.server.serve_forever, args=(0.02,), daemon=True)
    serving.start()
    with Api() as api:
        fleet = Fleet(api, gateway, keys)
        fleet.runs(2)
        yield fleet
    gateway.server.shutdown()
    gateway.server.server_close()
