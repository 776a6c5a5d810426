"""A later values file takes a pool away with null, as Helm's users do."""

from pathlib import Path

import pytest
import yaml

from tests.helm.fleets import SMALL, values
from tests.helm.helm import HelmError, of_kind, render
from tests.helm.ray_service import fleet, groups

BOTH = values(
    pools={"chat": SMALL, "overflow": {"model": "org/other", "autoscaling": {"max_replicas": 2}}},
    models={"storage": "pvc", "download": {"enabled": True}},
    warmNodes={"enabled": True},
)
BOTH["fleet"]["pools"]["chat"] = {**SMALL, "autoscaling": {"max_replicas": 3}}
BOTH["poolPods"] = {"overflow": {"nodeSelector": {"kind": "other"}}}
GONE = {"fleet": {"pools": {"overflow": None}}, "poolPods": {"overflow": None}}


@pytest.fixture
def later(tmp_path: Path) -> Path:
    path = tmp_path / "later.yaml"
    path.write_text(yaml.safe_dump(GONE))
    return path


def test_a_removed_pool_is_absent_from_every_object(later: Path) -> None:
    objects = render(BOTH, "--values", str(later))
    service = of_kind(objects, "RayService")
    assert list(groups(service)) == ["gateway", "chat"]
    assert list(fleet(service)["pools"]) == ["chat"]
    text = yaml.safe_dump(objects)
    assert "overflow" not in text and "org/other" not in text


def test_every_template_renders_without_the_removed_pool(later: Path) -> None:
    """Helm renders them in another order."""
    whole = render(BOTH, "--values", str(later))
    for name in ("poddisruptionbudget", "warm-nodes", "models"):
        alone = render(BOTH, "--values", str(later), show_only=f"templates/{name}.yaml")
        assert alone and [o["metadata"]["name"] for o in alone if o not in whole] == []


def test_a_null_key_in_a_pool_is_still_checked(tmp_path: Path) -> None:
    path = tmp_path / "later.yaml"
    path.write_text(yaml.safe_dump({"fleet": {"pools": {"chat": {"model": None}}}}))
    with pytest.raises(HelmError, match="model"):
        render(BOTH, "--values", str(path))


def test_a_fleet_without_pools_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "later.yaml"
    path.write_text(yaml.safe_dump({"fleet": {"pools": {"chat": None, "overflow": None}}}))
    with pytest.raises(HelmError, match="fleet is empty"):
        render({**BOTH, "poolPods": {}, "warmNodes": {"enabled": False}}, "--values", str(path))
