"""What a Prometheus sees of a release, and that it wakes no operator while all is well."""

from __future__ import annotations

from copy import deepcopy

import pytest
import yaml

from tests.kubernetes.api import name_of
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.prometheus import watch
from tests.kubernetes_long.release import Release
from tests.kubernetes_long.shapes import two_of_each
from tests.kubernetes_long.visitors import NAMESPACE
from tests.prometheus import needs_gpus, needs_tiers, queries

WITH_METRICS = ("gateway", "engine")

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]


def test_no_alert_fires_in_normal_operation_and_panels_have_data(
    release: Release, first_node: str
) -> None:
    """Alerts and dashboard panels under load and during an upgrade."""
    release.remove()
    scraped = {"metrics": {"prometheusNamespace": NAMESPACE}}
    shape = two_of_each(first_node) | scraped
    on = {
        "metrics": {
            "podMonitor": {"enabled": True, "interval": "5s"},
            "prometheusRule": {"enabled": True},
            **scraped["metrics"],
        }
    }
    objects = [one for one in yaml.safe_load_all(release.rendered(shape | on)) if one]
    with watch(objects, release.namespace, release.image) as prometheus:
        release.install(shape)
        release.wait()
        with release.traffic() as traffic:
            traffic.flow(60)
            changed = deepcopy(shape)
            changed["fleet"]["pools"]["engine"]["engine_args"] = {"max_num_seqs": 16}
            release.upgrade(changed)
            release.wait()
        traffic.tell()
        up = {one["metric"]["pod"] for one in prometheus.seen('up{job="antefix"} == 1')}
        gateways, engines = ({name_of(pod) for pod in release.pods(c)} for c in WITH_METRICS)
        assert gateways <= up
        # a pod more than wanted has no replica, and so no metrics
        assert len(engines & up) == len(gateways)
        asked = {
            where: text
            for where, text in queries().items()
            if not (needs_gpus(text) or needs_tiers(text))
        }
        empty = {where for where, text in asked.items() if not prometheus.query(text)}
        measured("queries", len(asked), "")
        print("without data:", *sorted(empty), sep="\n  ")
        assert not prometheus.fired()
        assert not traffic.failed()
