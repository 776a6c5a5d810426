"""Keys that this chart had, or that others have, are refused with what to write instead."""

import re
from typing import Any

import pytest
import yaml

from k8s.chart.chart_schema import Schema, removed, schema
from tests.helm.helm import CHART, HelmError, template

RENAMED: dict[str, str] = yaml.safe_load((CHART / "renamed.yaml").read_text())
REMEDIES = {path: f"write {instead}" for path, instead in RENAMED.items()} | removed()


def complaint_of(values: dict[str, Any]) -> str:
    with pytest.raises(HelmError) as caught:
        template(values)
    return str(caught.value)


@pytest.fixture(scope="module")
def complaint() -> str:
    """Return the complaint about values that hold every renamed or removed key."""
    values: dict[str, Any] = {"fleet": {"name": "small", "pools": {"engine": {"model": "a/b"}}}}
    for path in REMEDIES:
        *above, name = path.replace("*", "engine").split(".")
        section = values
        for key in above:
            section = section.setdefault(key, {})
        section[name] = {"any": ["thing"]}
    return complaint_of(values)


@pytest.mark.parametrize("path", REMEDIES)
def test_a_former_key_is_refused_with_what_replaces_it(path: str, complaint: str) -> None:
    told = f"values: {path.replace('*', 'engine')} is not a key of this chart: "
    assert f"\n{told}{REMEDIES[path]}\n" in complaint


def test_a_renamed_key_is_reported_for_every_pool() -> None:
    pools = {name: {"model": f"a/{name}", "overflow_to": "x"} for name in ("large", "small")}
    said = complaint_of({"fleet": {"name": "two", "pools": pools}, "replicaCount": 2})
    assert [line.split(" is not ")[0] for line in said.splitlines() if " is not " in line] == [
        "values: fleet.pools.large.overflow_to",
        "values: fleet.pools.small.overflow_to",
        "values: replicaCount",
    ]


def test_a_renamed_key_is_reported_before_a_missing_fleet() -> None:
    said = complaint_of({"modelSpec": [{"name": "llama"}]})
    assert "values: modelSpec is not a key of this chart: write fleet.pools" in said
    assert "fleet is empty" not in said


def test_every_key_named_in_a_message_exists() -> None:
    whole = schema()
    named = {key for words in RENAMED.values() for key in re.findall(r"\w+(?:\.\w+)+", words)}
    assert len(named) > 10
    assert [key for key in sorted(named) if not _is_key(key, whole)] == []


def _is_key(path: str, section: Schema) -> bool:
    for name in path.split("."):
        if name == "NAME":
            (section,) = section["patternProperties"].values()
            continue
        if name not in section.get("properties", {}):
            return False
        section = section["properties"][name]
    return "Not a key" not in section.get("description", "")
