"""Changes of a release under traffic: in place, by a second cluster, back, by GitOps."""

from __future__ import annotations

import re
import time
from copy import deepcopy

import pytest

from tests.kubernetes.api import until
from tests.kubernetes_long.kubectl import get, kubectl
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.release import READY_S, Release, Values, restricted_namespace
from tests.kubernetes_long.shapes import ONE_OF_EACH, two_of_each
from tests.kubernetes_long.traffic import are_new

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

ANNOTATED: Values = {"podAnnotations": {"example.com/changed": "1"}}


def test_a_change_of_pods_makes_a_second_cluster_and_fails_no_request(
    release: Release,
) -> None:
    """Change of pods through a second cluster, under load."""
    release.settle(ONE_OF_EACH)
    first, secrets = release.active(), release.secrets()
    with release.traffic() as traffic:
        release.upgrade(ANNOTATED)
        switched = until("the second cluster serves", lambda: release.active() != first, READY_S)
        measured("second cluster serves after", switched, "s")
        measured("first cluster gone after", release.wait(), "s")
    traffic.tell()
    assert not traffic.failed()
    assert release.secrets() == secrets


def test_a_change_of_the_fleet_is_made_in_place_and_fails_no_request(
    release: Release, first_node: str
) -> None:
    """Change of the fleet in place, under load."""
    release.settle(two_of_each(first_node))
    first, secrets = release.active(), release.secrets()
    changed = deepcopy(two_of_each(first_node))
    # the engine reads it when it starts
    changed["fleet"]["pools"]["engine"]["engine_args"] = {"max_num_seqs": 16}
    with release.traffic() as traffic:
        traffic.flow(20)
        old = traffic.replicas()
        began = time.time()
        release.upgrade(changed)
        until("new engines alone answer", lambda: are_new(traffic, old), READY_S)
        release.wait()
        measured("ready after", time.time() - began, "s")
    traffic.tell()
    assert not traffic.failed()
    assert release.active() == first
    assert release.secrets() == secrets


def names(release: Release) -> set[str]:
    return {pod["metadata"]["name"] for pod in release.pods()}


def test_a_rollback_restores_the_previous_settings(release: Release) -> None:
    """Helm rollback of changed settings."""
    release.settle(ONE_OF_EACH)
    secrets = release.secrets()
    release.upgrade({"fleet": {"pools": {"engine": {"slo": {"interactive": {"ttft_s": 29}}}}}})
    assert configured_ttft_s(release) == 29
    release.helm("rollback")
    assert configured_ttft_s(release) == 30
    release.wait()
    assert release.secrets() == secrets
    release.restore(ONE_OF_EACH)


def configured_ttft_s(release: Release) -> float:
    """Return the TTFT of interactive requests, wherever the RayService's configuration has it."""
    text = release.service()["spec"]["serveConfigV2"]
    (found,) = set(re.findall(r"interactive:\s+ttft_s: (\d+)", text))
    return float(found)


def test_applying_again_as_gitops_does_changes_nothing(release: Release) -> None:
    """Repeated `kubectl apply` of rendered manifests, as GitOps tools do."""
    release.remove()
    restricted_namespace(release.namespace)
    where = ("--namespace", release.namespace)
    # it renders without a look at the cluster, so passwords are its user's
    keys = ("api-keys=default=key-of-the-default-tenant", "engine-secret=of-the-engines")
    made = {"auth": keys, "redis": ("password=of-redis",)}
    for name, pairs in made.items():
        literals = (word for pair in pairs for word in ("--from-literal", pair))
        kubectl("create", "secret", "generic", f"own-{name}", *where, *literals)
    values = {f"{name}": {"existingSecret": f"own-{name}"} for name in made}
    apply = ("apply", *where, "-f", "-", "-o", "name")
    made_of = kubectl(*apply, stdin=release.rendered(values)).split()
    release.wait()
    before = versions(made_of, release), release.active(), names(release)
    assert kubectl(*apply, stdin=release.rendered(values)).split() == made_of
    release.wait()
    after = versions(made_of, release), release.active(), names(release)
    assert after == before
    # server-side, as Argo CD and Flux may be configured to
    for _ in range(2):
        applied = ("apply", "--server-side", "--field-manager", "gitops", "--force-conflicts")
        kubectl(*applied, *where, "-f", "-", stdin=release.rendered(values))
    release.wait()
    assert (release.active(), names(release)) == before[1:]
    release.remove()


def versions(names: list[str], release: Release) -> dict[str, str]:
    """Of what is wanted of each object, which a controller that reports its state does not change.

    What kubectl says counts for nothing: to it, defaults that the API server adds are a change.
    """
    of_all = {}
    for name in names:
        kind, _, called = name.partition("/")
        one = get(kind, called, release.namespace)
        assert one
        of_all[name] = str(one["metadata"].get("generation") or one["metadata"]["resourceVersion"])
    return of_all


def test_without_room_for_two_pods_change_when_their_cluster_is_deleted(release: Release) -> None:
    """Change of pods without room for a second cluster, under load."""
    in_place: Values = {"upgrade": {"strategy": "None"}}
    release.settle(in_place)
    first, pods = release.active(), names(release)
    release.upgrade({**in_place, **ANNOTATED})
    release.wait()
    assert (release.active(), names(release)) == (first, pods)
    began = time.monotonic()
    with release.traffic() as traffic:
        kubectl("delete", "raycluster", first, "--namespace", release.namespace, "--wait=false")
        until("another cluster serves", lambda: release.active() not in ("", first), READY_S)
        release.wait()
        measured("another ready after", time.monotonic() - began, "s")
        traffic.flow()
    traffic.tell()
    engines = release.pods("engine")
    assert [pod["metadata"]["annotations"]["example.com/changed"] for pod in engines] == ["1"]


def test_a_changed_slo_reaches_running_pods(release: Release) -> None:
    """Change of an SLO in running pods, under load."""
    release.settle(ONE_OF_EACH)
    before = release.processes()
    assert all(before.values()), before
    with release.traffic() as traffic:
        traffic.flow(20)
        usual = max(outcome.took_s for outcome in traffic.outcomes())
        release.upgrade({"fleet": {"pools": {"engine": {"slo": {"interactive": {"ttft_s": 29}}}}}})
        until("the gateway knows of it", lambda: promised_s(release) == 29, within_s=300)
        traffic.flow(20)
    traffic.tell()
    slowest = max(outcome.took_s for outcome in traffic.outcomes())
    measured("slowest, relative to before", slowest / usual, "times")
    assert not traffic.failed()
    release.wait()
    assert release.processes() == before
    release.restore(ONE_OF_EACH)


def promised_s(release: Release) -> float:
    """The TTFT that the gateway counts interactive requests against."""
    ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
    where = ("--namespace", release.namespace)
    told = kubectl("exec", release.pod("gateway"), *where, "--", "python", "-c", ask)
    (line,) = (
        line
        for line in told.splitlines()
        if line.startswith("antefix_slo_threshold_seconds{")
        and 'objective="ttft"' in line
        and 'priority="interactive"' in line
    )
    return float(line.rpartition(" ")[2])
