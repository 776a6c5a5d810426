"""Who reaches which port of a release, where a network plugin enforces the chart's policies."""

from __future__ import annotations

import json

import pytest

from tests.kubernetes.api import name_of, until
from tests.kubernetes_long.kubectl import kubectl, objects
from tests.kubernetes_long.release import Release
from tests.kubernetes_long.shapes import ONE_OF_EACH
from tests.kubernetes_long.visitors import NAMESPACE, leave, visitor, within

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

# Prints those of ADDRESS:PORT that take a connection.
KNOCKING = """
import concurrent.futures, socket, sys
def knock(place):
    host, port = place.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 5).close()
        return place
    except OSError:
        return ""
with concurrent.futures.ThreadPoolExecutor(100) as pool:
    print(*pool.map(knock, sys.argv[1:]))
"""
# Prints the status of the answer, or why there is none.
ASKING = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print(error)
"""
# what a process in the pod listens on, read from /proc as it has no `ss`
LISTENING = """
import pathlib
for table in ("tcp", "tcp6"):
    for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and not fields[1].startswith("0100007F"):
            print(int(fields[1].rpartition(":")[2], 16))
"""


def reached(release: Release, places: list[str]) -> set[str]:
    """By a pod of another namespace, which the policies know nothing of."""
    visitor("stranger", release.image, ["sleep", "600"])
    try:
        return set(within("stranger", "python", "-c", KNOCKING, *places).split())
    finally:
        leave("stranger")


def listening_ports(release: Release) -> dict[str, tuple[str, int]]:
    """Component and port of every address and port that takes connections in the release's pods."""
    found = {}
    for pod in release.pods():
        component = pod["metadata"]["labels"]["antefix/component"]
        if component == "redis":
            ports = ["6379"]
        else:
            program = ("exec", name_of(pod), "--container", f"ray-{component}", "--")
            ports = kubectl(
                "--namespace", release.namespace, *program, "python", "-c", LISTENING
            ).split()
        for port in ports:
            found[f"{pod['status']['podIP']}:{port}"] = (component, int(port))
    return found


def test_a_pod_of_another_namespace_reaches_only_gateways(release: Release) -> None:
    """Network policies toward a pod of another namespace."""
    release.settle(ONE_OF_EACH)
    ports = listening_ports(release)
    components = {component for component, _ in ports.values()}
    assert components == {"head", "gateway", "engine", "redis"}
    assert {ports[place] for place in reached(release, list(ports))} == {("gateway", 8000)}


def test_a_pod_labeled_as_the_kuberay_operator_needs_the_ray_token(
    release: Release,
) -> None:
    """Ray's token, requested from a pod with the label of the KubeRay operator."""
    release.settle(ONE_OF_EACH)
    (head,) = release.pods("head")
    address = f"http://{head['status']['podIP']}:8265"
    visitor("stranger", release.image, ["sleep", "600"])
    try:
        labelled = ("--namespace", NAMESPACE, "app.kubernetes.io/name=kuberay-operator")
        kubectl("label", "pod", "stranger", *labelled)

        def told(path: str) -> str:
            return within("stranger", "python", "-c", ASKING, f"{address}{path}").strip()

        # an answer at all, since the policy lets it in
        until("Ray asks for its token", lambda: told("/api/jobs/") == "401", within_s=60)
        assert told("/api/serve/applications/") == "401"
    finally:
        leave("stranger")


def test_only_allowed_clients_reach_the_gateways_and_only_prometheus_the_metrics(
    release: Release,
) -> None:
    """Network policies for clients of the gateways and for Prometheus."""
    release.settle(ONE_OF_EACH)
    friends = {"namespaceSelector": {"matchLabels": {"antefix-tests": "friend"}}}
    policy = {"networkPolicy": {"allowedClients": [friends]}}
    release.upgrade(policy)
    place = listening_ports(release)
    until("strangers are shut out", lambda: not reached(release, list(place)), within_s=60)
    kubectl("label", "namespace", NAMESPACE, "antefix-tests=friend", "--overwrite")
    try:
        opened = ports_reached_eventually(release, place)
    finally:
        kubectl("label", "namespace", NAMESPACE, "antefix-tests-")
    assert opened == {("gateway", 8000)}
    release.upgrade(policy | {"metrics": {"prometheusNamespace": NAMESPACE}})
    antefixs = {("gateway", 9464), ("engine", 9464)}
    rays = {(of, 8080) for of in ("head", "gateway", "engine")}
    until(
        "only metrics are open to the namespace of Prometheus",
        lambda: {place[at] for at in reached(release, list(place))} == antefixs | rays,
        within_s=60,
    )
    release.restore(ONE_OF_EACH)


def ports_reached_eventually(
    release: Release, ports: dict[str, tuple[str, int]]
) -> set[tuple[str, int]]:
    found: set[str] = set()

    def some() -> bool:
        found.update(reached(release, list(ports)))
        return bool(found)

    until("a client is admitted", some, within_s=60)
    return {ports[place] for place in found}


def test_the_fleet_starts_if_a_network_plugin_ignores_end_ports(release: Release) -> None:
    """Start of a fleet under a network plugin that ignores `endPort`.

    Such a plugin opens only the first port of a range.
    """
    release.remove()
    release.install(ONE_OF_EACH)
    for policy in objects("networkpolicies", release.namespace):
        text = json.dumps(policy["spec"])
        for rule in policy["spec"].get("ingress", ()):
            for port in rule.get("ports", ()):
                port.pop("endPort", None)
        if json.dumps(policy["spec"]) != text:
            patch = json.dumps({"spec": {"ingress": policy["spec"]["ingress"]}})
            kubectl(
                *("patch", "networkpolicy", name_of(policy), "--namespace", release.namespace),
                *("--type", "merge", "--patch", patch),
            )
    release.wait()
    with release.traffic() as traffic:
        traffic.flow()
    assert not traffic.failed()
    release.changed()
