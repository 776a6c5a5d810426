"""Quantities as Go writes them, since KubeRay writes the RayService back and Helm 4 compares."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helm.fleets import values
from tests.helm.helm import CHART, Object, of_kind, render
from tests.helm.ray_service import container, groups, ray_service
from tests.some import some

FILES = [*(CHART / "values").glob("*.yaml"), *(CHART / "ci").glob("*-values.yaml")]


# apimachinery, pkg/api/resource/quantity_test.go and quantity_example_test.go
@pytest.mark.parametrize(
    ("given", "written"),
    [
        (1, "1"),
        (8, "8"),
        (0.5, "500m"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.1", "100m"),
        ("100m", "100m"),
        ("1000", "1k"),
        (1000000, "1M"),
        ("64Gi", "64Gi"),
        ("1024Mi", "1Gi"),
        ("65536Mi", "64Gi"),
        ("1.5Gi", "1536Mi"),
        ("1500Mi", "1500Mi"),
        ("0.5Ki", "512"),
        (68719476736, "68719476736"),
        ("0", "0"),
        (0, "0"),
        ("1e3", "1e3"),
    ],
)
def test_a_quantity_is_rendered_as_go_writes_it(given: float | str, written: str) -> None:
    given_of = {kind: {"cpu": given, "memory": given} for kind in ("requests", "limits")}
    found = ray_service(values(gatewayPods={"resources": given_of}))
    written_of = {kind: {"cpu": written, "memory": written} for kind in ("requests", "limits")}
    assert container(groups(found)["gateway"])["resources"] == written_of


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_quantity_is_a_number(file: Path) -> None:
    """KubeRay would return a number, such as 2 for the GPUs, as "2"."""
    found = of_kind(render(file, show_only="templates/rayservice.yaml"), "RayService")
    amounts = list(_amounts(found["spec"]["rayClusterConfig"]))
    assert amounts
    assert [a for a in amounts if not re.fullmatch(r"[0-9]+([mkMGTPE]|[KMGTPE]i)?", str(a))] == []
    assert [a for a in amounts if not isinstance(a, str)] == []


def _amounts(node: Any) -> Iterator[Any]:
    if isinstance(node, list):
        for item in node:
            yield from _amounts(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("requests", "limits"):
                yield from value.values()
            else:
                yield from _amounts(value)


def test_worker_groups_set_every_field_that_kuberay_would_default(minimal: Object) -> None:
    """Of the Go types of 1.6 these two are written, though no values file has them."""
    for group in some(groups(minimal).values()):
        assert group["scaleStrategy"] == {}
        assert group["numOfHosts"] == 1
