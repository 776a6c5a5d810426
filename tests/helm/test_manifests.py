"""k8s/manifests/ is what the chart makes of its values files."""

from pathlib import Path

import pytest
import yaml

from tests.helm.manifests import FOLDER, rendered
from tests.shipped import VALUES_FILES
from tests.some import some


@pytest.mark.parametrize("values", VALUES_FILES, ids=lambda file: file.stem)
def test_a_manifest_is_in_step_with_the_chart(values: Path) -> None:
    """If it fails: make manifests."""
    text = (FOLDER / values.name).read_text()
    assert text == rendered(values)
    kinds = {made["kind"] for made in yaml.safe_load_all(text) if made}
    assert "RayService" in kinds
    assert "Secret" not in kinds


def test_every_manifest_has_its_values_file() -> None:
    assert {file.name for file in some(FOLDER.glob("*.yaml"))} == {
        file.name for file in VALUES_FILES
    }
