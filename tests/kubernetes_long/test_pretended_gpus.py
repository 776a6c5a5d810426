"""values/multi-node-a100.yaml on two nodes with simulated GPUs: what is placed where, when.

Engines are vLLM's CPU build in an image of other package versions than the head's and gateways'.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.helm import CHART, ROOT, Object, helm
from tests.kubernetes.api import Refused, is_ending, until
from tests.kubernetes_long.kubectl import get
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.nodes import cluster_script, is_node_ready
from tests.kubernetes_long.pretended_gpus import GPU, pretended, set_gpus
from tests.kubernetes_long.release import READY_S, Release
from tests.kubernetes_long.shapes import HOST
from tests.kubernetes_long.test_accept import accept
from tests.kubernetes_long.traffic import are_new, names_of_images
from tests.kubernetes_long.visitors import NAMESPACE, leave, visitor, within
from tests.kubernetes_long.volumes import volume
from tests.missing import missing

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent
FILES = (CHART / "values" / "multi-node-a100.yaml", HERE / "pretended-gpus.yaml")
# Checks of `antefix k8s accept` that only engines on GPUs can pass.
NEEDS_A_GPU = {"attention backend", "quantized kernels", "NCCL", "KV cache", "TTFT", "TPOT"}
MODELS = ("tests/large", "tests/small")
LARGE, SMALL = "llama-3.1-70b-instruct", "llama-3.1-8b-instruct"
MAKE_MODEL = f"""
{(ROOT / "benchmarks" / "harness" / "fleets" / "split_model.py").read_text()}
Path("/tmp/model").mkdir()
split_model(Path("/tmp/model"), positions=32768)
"""
# as in the file: a list of later values replaces it
PATIENCE = yaml.safe_load(FILES[1].read_text())["gatewayPods"]["env"]
HUB = (HERE / "hub.py").read_text()
PORT = 8080
# of a node
GPUS = 8
# more at once than two engines have places for
MANY = 16


@pytest.fixture(scope="module")
def values(release: Release, first_node: str) -> Iterator[dict[str, Any]]:
    """What the fleet is installed with, over FILES. The first node has what must not be lost, and
    a volume of weights that all nodes share."""
    image = release.image.replace("antefix-cpu", "antefix-pretended-gpu")
    if not all(image in names for names in names_of_images()):
        missing(f"not all nodes have the image {image} (tests/kubernetes_long/*.Dockerfile)")
    release.remove()
    make = 'python -c "$0" && exec python -c "$@"'
    hub = [HUB, ",".join(MODELS), str(PORT), "/tmp/model"]
    visitor("hub", release.image, ["bash", "-c", make, MAKE_MODEL, *hub], nodeName=first_node)
    until("the hub has its model", hub_answers, within_s=300)
    pod = get("pod", "hub", NAMESPACE)
    assert pod
    address = {"name": "HF_ENDPOINT", "value": f"http://{pod['status']['podIP']}:{PORT}"}
    here = {"nodeSelector": {HOST: first_node}}
    shared = volume(
        *("models", first_node, release.image, "ReadWriteMany"), size="200Gi", is_shared=True
    )
    with shared:
        yield {"enginePods": {"env": [address, *PATIENCE]}, "rayHead": here, "redis": here}
        leave("hub")


@pytest.fixture(scope="module")
def installed(
    values: dict[str, Any], first_node: str, second_node: str
) -> Iterator[tuple[Release, float]]:
    """The release, on two nodes of 8 A100s each, and the seconds until it was ready."""
    own = Release(files=FILES)
    with pretended({first_node: GPUS, second_node: GPUS}):
        try:
            began = time.monotonic()
            own.settle(values)
            yield own, time.monotonic() - began
        finally:
            own.remove()


@pytest.fixture(scope="module")
def fleet(installed: tuple[Release, float]) -> Release:
    return installed[0]


def hub_answers() -> bool:
    url = f"http://localhost:{PORT}/api/models/{MODELS[0]}"
    with suppress(Refused):
        within("hub", "python", "-c", f"import urllib.request as u; u.urlopen({url!r})")
        return True
    return False


def engines(fleet: Release, pool: str = "") -> list[Object]:
    return [pod for pod in fleet.pods("engine", pool) if not is_ending(pod)]


def gpus_of(pod: Object) -> int:
    return sum(int(c["resources"]["limits"].get(GPU, 0)) for c in pod["spec"]["containers"])


class GpuWatch:
    """The most GPUs that the pods of a release had at once, on nodes and in all."""

    def __init__(self, fleet: Release) -> None:
        self.most = 0
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(2.0):
            with suppress(Refused):
                # those that end hold their GPUs still
                self.most = max(self.most, sum(map(gpus_of, self._fleet.pods("engine"))))

    @contextmanager
    def watching(self) -> Iterator[GpuWatch]:
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._thread.join()


def antefix(command: str, values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What `antefix k8s` prints as JSON for the fleet with these values."""
    (last := folder / "values.yaml").write_text(json.dumps(values))
    files = (word for file in (*FILES, last) for word in ("--values", str(file)))
    done = subprocess.run(
        [
            *(str(ROOT / ".venv" / "bin" / "antefix"), "k8s", command),
            *("--namespace", "antefix", *files, "-o", "json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PATH": f"{Path(helm()).parent}:{os.environ['PATH']}"},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("gpus", "title", "severity", "seen"),
    [
        ((8, 8), "room for llama-70b", "ok", "2 pods of 4 GPUs on one node"),
        ((3, 3), "room for llama-70b", "problem", "tensor parallelism stays in one node"),
        ((4, 4), "room for llama-8b", "problem", "1 pod without a node"),
        ((8, 4), "room for a rollout of llama-70b", "warning", "there is no room"),
        ((8, 8), "room for an upgrade", "warning", "there is no room for a second"),
    ],
    ids=["room", "narrow nodes", "no ninth GPU", "no surge", "no second cluster"],
)
def test_preflight_reports_missing_gpus_before_an_install(
    values: dict[str, Any],
    first_node: str,
    second_node: str,
    gpus: tuple[int, int],
    title: str,
    severity: str,
    seen: str,
    tmp_path: Path,
) -> None:
    """Preflight for clusters with too few simulated GPUs."""
    with pretended(dict(zip((first_node, second_node), gpus, strict=True))):
        found = antefix("preflight", values, tmp_path)["findings"]
    (finding,) = (one for one in found if one["title"] == title)
    assert (finding["severity"], seen in finding["seen"]) == (severity, True), finding


def test_each_group_of_gpus_is_placed_on_one_node(installed: tuple[Release, float]) -> None:
    """Placement of engines with several simulated GPUs."""
    fleet, ready_s = installed
    measured("ready after", ready_s, "s")
    by_pool = {pool: engines(fleet, pool) for pool in ("llama-70b", "llama-8b")}
    assert {pool: [gpus_of(p) for p in pods] for pool, pods in by_pool.items()} == {
        "llama-70b": [4, 4],  # one of them warm
        "llama-8b": [1],
    }
    on_nodes: Counter[str] = Counter()
    for pod in engines(fleet):
        on_nodes[pod["spec"]["nodeName"]] += gpus_of(pod)
    assert max(on_nodes.values()) <= GPUS
    assert not any(gpus_of(pod) for pod in fleet.pods("gateway"))


@pytest.mark.parametrize("model", [LARGE, SMALL])
def test_a_model_answers_through_gateways_of_another_image(fleet: Release, model: str) -> None:
    """Gateways of the CPU image with engines of the GPU image."""
    with fleet.traffic(model=model) as traffic:
        traffic.flow()
    traffic.tell()
    assert not traffic.failed()
    assert model in traffic.models()


def test_acceptance_completes_on_simulated_gpus(fleet: Release, tmp_path: Path) -> None:
    """`antefix k8s accept` on simulated GPUs."""
    accept(fleet, "--under-traffic", "--output-dir", str(tmp_path))
    told = json.loads((tmp_path / "antefix-accept.json").read_text())
    print((tmp_path / "antefix-accept.txt").read_text())
    measured("total time", told["took_s"], "s")
    assert told["pools"].keys() == {"llama-70b", "llama-8b"}
    for name, pool in told["pools"].items():
        by_verdict: dict[str, set[str]] = {}
        for check in pool["checks"]:
            by_verdict.setdefault(check["verdict"], set()).add(check["name"])
        assert by_verdict.get("failed", set()) <= NEEDS_A_GPU, name
        assert by_verdict["passed"] >= {"prefix hit", "engine killed"}, name
    fleet.wait()


def test_a_rollout_uses_the_number_of_gpus_that_the_diff_reports(
    fleet: Release, values: dict[str, Any], tmp_path: Path
) -> None:
    """GPUs used by a rollout, compared with the prediction of `antefix k8s diff`."""
    pool = {"engine_args": {"max_num_seqs": 5}}
    changed = {**values, "fleet": {"pools": {"llama-8b": pool}}}
    with fleet.traffic(model=SMALL) as traffic, GpuWatch(fleet).watching() as watch:
        old = traffic.replicas()
        diff = antefix("diff", changed, tmp_path)
        fleet.upgrade(changed)
        until("a new engine alone answers", lambda: are_new(traffic, old), READY_S)
        fleet.wait()
    traffic.tell()
    assert not traffic.failed()
    assert (diff["pools"], diff["second_cluster"]) == (["llama-8b"], False)
    measured("maximum GPUs", watch.most, "")
    measured("maximum GPUs reported by k8s diff", diff["gpus"]["meanwhile"], "")
    assert diff["gpus"]["after"] < watch.most <= diff["gpus"]["meanwhile"]


def test_pools_grow_to_the_gpu_budget_and_not_beyond(
    fleet: Release, values: dict[str, Any]
) -> None:
    """Autoscaling of two pools up to the GPU budget."""
    (budget,) = {int(yaml.safe_load(FILES[1].read_text())["fleet"]["gpu_budget"])}
    tight = {"slo": {"interactive": {"ttft_s": 1}}}
    pools = {"llama-70b": tight, "llama-8b": tight}
    fleet.upgrade({**values, "fleet": {"pools": pools}})
    with GpuWatch(fleet).watching() as watch, fleet.traffic(clients=MANY, model=LARGE):
        # a third group of 4 GPUs, which leaves no room for a fourth
        grew = until("13 GPUs or 14", lambda: watch.most >= budget - 1, READY_S)
        measured("grew after", grew, "s")
        time.sleep(60)  # no further pod may start meanwhile
    measured("maximum GPUs", watch.most, "")
    assert budget - 1 <= watch.most <= budget


def test_losing_a_gpu_node_leaves_the_other_serving(
    fleet: Release, values: dict[str, Any], second_node: str
) -> None:
    """Loss of a node with simulated GPUs under load."""
    fleet.upgrade(values)
    fleet.wait()
    number = second_node.rpartition("-")[2]
    with fleet.traffic(model=LARGE) as traffic:
        try:
            cluster_script("node", number, "kill")
            until("Kubernetes has noticed", lambda: not is_node_ready(second_node), within_s=120)
            noticed = time.time()
            traffic.flow(10)
        finally:
            cluster_script("node", number, "start")
        until("the node is back", lambda: is_node_ready(second_node), within_s=300)
        set_gpus(second_node, GPUS)  # as its device plugin reports them again
        fleet.wait()
        measured("all ready after", time.time() - noticed, "s")
    traffic.tell()
    # one that entered at the lost gateway, or waited for the lost engine, before anybody knew
    assert not [one for one in traffic.failed() if one.began > noticed + 10]
