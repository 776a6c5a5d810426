"""Whether replicas reach each other's tiers of the KV cache, and whether others do."""

import pytest

from tests.helm.fleets import SMALL, values
from tests.helm.helm import RELEASE, Object, all_of_kind, render
from tests.helm.policies import PodAt, allows, allows_egress

PEERS = {**SMALL, "replicas": 2, "kv_tiers": {"host_bytes": "1Gi", "peers": True}}
LIMITED = {"egress": {"enabled": True}}


def pod_of(component: str, release: str = RELEASE) -> PodAt:
    return PodAt({"app.kubernetes.io/instance": release, "antefix/component": component})


ENGINE = pod_of("engine")


@pytest.fixture(scope="module")
def policies() -> list[Object]:
    given = values(pools={"chat": PEERS}, networkPolicy=LIMITED)
    return all_of_kind(render(given), "NetworkPolicy")


@pytest.mark.parametrize("port", [1024, 32768, 60999, 65535])
def test_replicas_reach_each_other_on_every_port(port: int, policies: list[Object]) -> None:
    """The control port of an engine is fixed when it starts, and UCX uses any free ports."""
    assert allows(policies, ENGINE, ENGINE, port)
    assert allows_egress(policies, ENGINE, ENGINE, port)


@pytest.mark.parametrize(
    "source",
    [
        *(pod_of(component) for component in ("redis", "test", "warm-nodes", "model-download")),
        pod_of("engine", release="other"),
        PodAt(ENGINE.labels, namespace="other"),
        PodAt({"app": "neighbour"}),
        PodAt({"app": "prometheus"}, namespace="monitoring"),
    ],
)
@pytest.mark.parametrize("port", [1024, 32768, 60999, 65535])
def test_no_other_pod_reaches_the_blocks_of_a_replica(
    source: PodAt, port: int, policies: list[Object]
) -> None:
    assert not allows(policies, source, ENGINE, port)


def test_peers_open_no_port_that_was_closed(policies: list[Object]) -> None:
    without = render(values(networkPolicy=LIMITED))
    assert policies == all_of_kind(without, "NetworkPolicy")
