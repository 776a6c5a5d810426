"""What the chart gives to KubeRay starts the fleet, on a Ray cluster as KubeRay lays it out.

A node stands for each pod, with the start parameters and the environment of its group. The
configuration is PUT to the head's dashboard, as KubeRay does. Not in tests/real: next to the fleet
that runs for those, memory runs out.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.common.exit_codes import ExitCode
from deployments.fleet.applications import fleet_of, serve_config
from tests.clients import REQUEST_SECONDS, Service
from tests.helm.helm import CHART, Object, of_kind, render
from tests.two_nodes import DASHBOARD_PORT, Node, TwoNodes

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(600)]

# https://docs.ray.io/en/latest/serve/api/index.html#put-api-serve-applications
APPLICATIONS = "/api/serve/applications/"
HEAD, GATEWAY = "head", "gateway"
KEYS_FILE = "/etc/antefix/auth/api-keys"
KEY = "sk-of-the-chart-0"
START_SECONDS = 400
VALUES = [
    # two engines and a gateway are enough, and Redis is the test's own
    *("--set", "fleet.pools.chat.replicas=1"),
    # two cores that load another engine alongside this one meet no SLO
    *("--set", "fleet.pools.chat.slo.interactive.ttft_s=60"),
    *("--set", "redis.enabled=false", "--set", "redis.external.existingSecret=its-url"),
]


@dataclass
class Cluster:
    nodes: TwoNodes
    objects: list[Object]
    by_group: dict[str, Node]

    @property
    def service(self) -> Object:
        return of_kind(self.objects, "RayService")

    def gateway(self, port: str | int) -> str:
        """The address that a port of the gateway's container has here."""
        named = {p["name"]: p["containerPort"] for p in _container(self.service, GATEWAY)["ports"]}
        return f"http://{self.by_group[GATEWAY].address}:{named.get(str(port), port)}"

    def replicas(self, deployment: str) -> dict[str, str]:
        """Addresses of the nodes of the running ones; of none while the application is built."""
        told = self.deployments().get(deployment)
        return {
            replica["replica_id"]: replica["node_ip"]
            for replica in (told["replicas"] if told else [])
            if replica["state"] == "RUNNING"
        }

    def deployments(self) -> dict[str, Any]:
        """Return the deployments of all applications, by name."""
        return {
            name: deployment
            for application in self.dashboard("GET")["applications"].values()
            for name, deployment in application["deployments"].items()
        }

    def dashboard(self, method: str, body: bytes | None = None) -> Any:
        """Ray Serve's REST API. Raises URLError."""
        url = f"http://{self.by_group[HEAD].address}:{DASHBOARD_PORT}{APPLICATIONS}"
        return self.call(url, method, body, self.nodes.token)

    def call(self, url: str, method: str = "GET", body: bytes | None = None, key: str = "") -> Any:
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        request = urllib.request.Request(url, body, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def ask() -> Any:
            with opener.open(request, timeout=60) as answer:
                text = answer.read()
            return json.loads(text) if text else None

        return self.nodes.outside(ask, timeout_s=90)


def _groups(service: Object) -> dict[str, Object]:
    """Group name, HEAD for the head's, to the group."""
    config = service["spec"]["rayClusterConfig"]
    workers = {group["groupName"]: group for group in config["workerGroupSpecs"]}
    return {HEAD: config["headGroupSpec"], **workers}


def _container(service: Object, group: str) -> Object:
    container: Object = _groups(service)[group]["template"]["spec"]["containers"][0]
    return container


def _join(nodes: TwoNodes, number: int, service: Object, group: str) -> Node:
    """A node like a pod of the group, with the environment of its container."""
    params = _groups(service)[group]["rayStartParams"]
    # KubeRay puts the parameter into a shell's command as it is
    (resources,) = shlex.split(params.get("resources", "{}"))
    from_elsewhere = {
        "ANTEFIX_API_KEYS_FILE": str(_keys_file(nodes)),
        "ANTEFIX_ENGINE_SECRET": "secret",
        "ANTEFIX_CLUSTER": "afx-antefix-abcde",
        "ANTEFIX_REDIS_URL": nodes.redis_url,
        # no fleet, as in a first install
        "ANTEFIX_PEERS_URL": "http://127.0.0.1:9",
    }
    with pytest.MonkeyPatch.context() as patch:
        for entry in _container(service, group)["env"]:
            name = entry["name"]
            patch.setenv(name, from_elsewhere.get(name) or entry["value"])
        return nodes.join(number, int(params["num-cpus"]), resources, with_dashboard=True)


def _keys_file(nodes: TwoNodes) -> Path:
    return nodes.folder / "api-keys"


@pytest.fixture(scope="module")
def cluster(small_model: Path) -> Iterator[Cluster]:
    # what is proved here is the chart: a model of a few layers will do
    pools = ("chat", "small")
    models = [f"--set=fleet.pools.{pool}.model={small_model}" for pool in pools]
    objects = render(CHART / "values" / "laptop-kind.yaml", *VALUES, *models)
    service = of_kind(objects, "RayService")
    nodes = TwoNodes()
    try:
        nodes.start_redis()
        _keys_file(nodes).write_text(f"default={KEY}\n")
        by_group = {
            group: _join(nodes, number, service, group)
            for number, group in enumerate(_groups(service), start=20)
        }
        yield Cluster(nodes, objects, by_group)
    finally:
        nodes.close()


def test_the_rendered_configuration_starts_the_fleet(cluster: Cluster) -> None:
    config = yaml.safe_load(cluster.service["spec"]["serveConfigV2"])
    began = time.monotonic()
    cluster.dashboard("PUT", json.dumps(config).encode())
    while True:
        told = cluster.dashboard("GET")["applications"]
        states = {application["status"] for application in told.values()}
        if states == {"RUNNING"}:
            break
        assert "DEPLOY_FAILED" not in states, told
        assert time.monotonic() - began < START_SECONDS, told
        time.sleep(0.5)
    print(f"\nrunning after {time.monotonic() - began:.0f} s")


def test_each_deployment_runs_in_its_worker_group(cluster: Cluster) -> None:
    places = {
        name: {replica["node_ip"] for replica in deployment["replicas"]}
        for name, deployment in cluster.deployments().items()
    }
    expected = {name: {node.address} for name, node in cluster.by_group.items() if name != HEAD}
    assert places == expected


def test_the_gateways_probe_is_answered(cluster: Cluster) -> None:
    probe = _container(cluster.service, GATEWAY)["readinessProbe"]["httpGet"]
    url = cluster.gateway(probe["port"]) + probe["path"]
    # like Kubernetes, ask again: a gateway learns of a new replica after Ray Serve has
    began = time.monotonic()
    while True:
        try:
            cluster.call(url)
            break
        except urllib.error.HTTPError as error:
            assert error.code == 503, error
            assert time.monotonic() - began < START_SECONDS, error
        time.sleep(0.5)
    with pytest.raises(urllib.error.HTTPError):
        cluster.call(url + "-not")


def test_the_command_of_helm_test_passes(cluster: Cluster) -> None:
    """The very command of its pod, with the addresses that its parts have here."""
    (container,) = of_kind(cluster.objects, "Pod", "conversation")["spec"]["containers"]
    assert container["command"] == ["antefix", "verify"]
    name = cluster.service["metadata"]["name"]
    here = {
        f"http://{name}:80": cluster.gateway("serve"),
        KEYS_FILE: str(_keys_file(cluster.nodes)),
    }
    arguments = container["args"]
    for there, address in here.items():
        assert any(there in argument for argument in arguments)
        arguments = [argument.replace(there, address) for argument in arguments]
    command = [sys.executable, "-m", "cli.main", "verify", *arguments]
    done = cluster.nodes.run(command, 0, {"HOME": str(cluster.nodes.home)}, timeout_s=180)
    print(done.stdout)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "prefix hit" in done.stdout


def test_a_changed_fleet_is_rolled_out_without_losing_a_request(cluster: Cluster) -> None:
    """New replicas start first, on nodes as Ray's autoscaler adds them; overflow serves on."""
    small = cluster.replicas("small")
    old = {group: cluster.by_group[group].address for group in (GATEWAY, "chat")}
    spare = {
        group: _join(cluster.nodes, number, cluster.service, group).address
        for number, group in ((40, GATEWAY), (41, "chat"))
    }
    port = cluster.gateway("serve").rpartition(":")[2]
    service = Service(
        {"authorization": f"Bearer {KEY}"},
        [f"http://{address}:{port}" for address in (old[GATEWAY], spare[GATEWAY])],
        "smollm2-135m-instruct",
        clients=3,
        # what is rolled out meanwhile needs the cores, too
        pause_s=0.2,
    )
    traffic = cluster.nodes.begin_outside(service.run)
    fleet = fleet_of(yaml.safe_load(cluster.service["spec"]["serveConfigV2"]))
    fleet["surge_percent"] = 100
    fleet["gateway"]["cpus"] = 0.2
    fleet["pools"]["chat"]["prefill_rate"] = 1000.0
    began = time.monotonic()
    cluster.dashboard("PUT", json.dumps(serve_config(fleet)).encode())
    while {g: [*cluster.replicas(g).values()] for g in spare} != {g: [spare[g]] for g in spare}:
        assert time.monotonic() - began < START_SECONDS, cluster.dashboard("GET")
        time.sleep(0.5)
    took = time.monotonic() - began
    assert cluster.replicas("small") == small
    time.sleep(3)
    service.stop = True
    traffic.result(REQUEST_SECONDS + 10)

    kinds = Counter(outcome.kind for outcome in service.outcomes)
    entered = {outcome.entered_at for outcome in service.outcomes}
    print(f"\nrolled out in {took:.0f} s: {dict(kinds)}, {len(service.errors)} errors")
    assert not service.errors
    assert set(kinds) == {"whole"} and len(entered) == 2
