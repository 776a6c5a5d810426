"""Preflight asked of a cluster that tests/k8s/api.py plays."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from deployments.fleet.fleet import Fleet
from k8s.client.cluster import Cluster
from k8s.needs.facts import gather
from k8s.needs.needs import ClusterNeeds, needs_of
from k8s.preflight.findings import PreflightFinding
from k8s.preflight.preflight import findings
from tests.helm.helm import defaults, merged, render
from tests.k8s.api import Api
from tests.k8s.objects import NAMESPACE, RAYSERVICES, Object, namespace, node, operator

READY = (RAYSERVICES, operator(), node("cpu-1"), namespace(NAMESPACE))
_DEFAULTS = defaults()
# what the chart wants where an Ingress or a route is enabled
_ELSEWHERE = {
    "ingress": {"hosts": ["llm.acme.internal"]},
    "httpRoute": {"parentRefs": [{"name": "public"}]},
}
EIGHT = node("a100-1", 8)


def llama(**settings: Any) -> Object:
    return {"model": "org/model", **settings}


def needs(
    pools: Mapping[str, Object] | None = None,
    values: Object | None = None,
    fleet: Object | None = None,
) -> ClusterNeeds:
    fleet = {"name": "test", "pools": pools or {"llama": llama()}, **(fleet or {})}
    given = merged({**_ELSEWHERE, "fleet": fleet}, values or {})
    objects = _objects(json.dumps(given))
    return needs_of(objects, Fleet.model_validate(fleet), merged(_DEFAULTS, given))


def preflight_findings_of_values(values: Object, *objects: Object) -> list[PreflightFinding]:
    """Of whole values, fleet included."""
    fleet = Fleet.model_validate(values["fleet"])
    wanted = needs_of(_objects(json.dumps(values)), fleet, merged(_DEFAULTS, values))
    with Api(*objects) as api:
        facts = gather(Cluster(str(api.kubeconfig)), wanted, NAMESPACE, "antefix")
    return findings(facts, wanted)


@functools.cache
def _objects(given: str) -> list[Object]:
    return render(json.loads(given))


def preflight_findings(
    *objects: Object,
    pools: Mapping[str, Object] | None = None,
    values: Object | None = None,
    fleet: Object | None = None,
    forbidden: tuple[str, str] | None = None,
    version: str = "1.34",
    release: str = "antefix",
) -> list[PreflightFinding]:
    with Api(*objects, version=version) as api:
        if forbidden:
            api.forbid(*forbidden)
        wanted = needs(pools, values, fleet)
        return findings(gather(Cluster(str(api.kubeconfig)), wanted, NAMESPACE, release), wanted)


def finding_titled(found: list[PreflightFinding], title: str) -> PreflightFinding:
    (finding,) = [one for one in found if one.title == title]
    return finding


def warnings_and_problems(found: list[PreflightFinding]) -> dict[str, str]:
    return {one.title: one.seen for one in found if one.severity in ("warning", "problem")}
