"""The schema of the chart's values takes every fleet that Antefix takes, and no key it does not."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from pydantic import ValidationError

from deployments.fleet.fleet import Fleet
from deployments.fleet.settings.reserved import RESERVED_ENGINE_ARGS, RESERVED_ENV
from k8s.chart import chart_schema
from k8s.chart.chart_comments import CHART
from tests.deployments.fleet.test_wrong_fleet_files import WRONG

ROOT = CHART.parent.parent
SCHEMA = chart_schema.schema()
VALIDATOR = Draft7Validator(SCHEMA)
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
RENAMED = yaml.safe_load((CHART / "renamed.yaml").read_text()).keys() | chart_schema.removed()

# What stands between keys, in other files, or in the form of a Redis address.
BEYOND_A_SCHEMA = {
    "removed key",  # a template refuses it
    "a median above the promise",
    "an end before the first token",
    "no pools",
    "path without a usable name",
    "unset variable",
    "malformed variable",
    "engine argument in two spellings",
    "GPUs that do not fit",
    "speculation without a draft",
    "a host tier that vLLM is to set too",
    "a host tier without a prefix cache",
    "exact answers without a proof",
    "a proof of what is not asked for",
    "quality without a limit",
    "quality of a model that is no folder",
    "overflow to nowhere",
    "overflow to itself",
    "overflow without an SLO",
    "overflow that ends before it begins",
    "bounds the wrong way round",
    "only warm replicas",
    "one port for two servers",
    "an SLO file that is not there",
    "a budget that is too small",
    "a budget that the beginning exceeds",
    "warm replicas without an SLO",
    "autoscaling without an SLO",
    "one model name in two pools",
    "a LoRA adapter named as a model",
    "redis without scheme",
    "redis without scheme, with a password",
    "redis of another kind",
    "redis with a slash in its password",
    "redis with a port out of range",
    "sentinel without service",
    "cluster with a database",
    "several plain hosts",
    # the chart's own templates say what replaces them
    "the old name of overflow",
    "a key that was removed",
    # to Helm a pool that a later file removes
    "empty pool",
}
# What JSON cannot hold, or YAML not say.
BEYOND_VALUES = {
    "empty",
    "a list",
    "unclosed bracket",
    "tab",
    "bare variable in braces",
    "two documents",
    "control character",
    "alias of itself",
    "duplicate key",
    "endless timeout",
    # Helm has read the words before a schema sees them
    "octal",
    "base 60",
    "a pool whose name is a word for true",
}

OBJECTIVE = {"ttft_s": 2, "ttft_p50_s": 1, "tpot_s": 0.1, "e2e_s": 60}
THROUGHPUT = {"tokens_per_s": 500, "running": 50}
# Every key of a fleet file, each with a value that is not the default.
LIMITS = {"requests_per_minute": 60, "tokens_per_minute": 5000, "concurrent_requests": 4}
EVERY_KEY: dict[str, Any] = {
    "name": "all",
    "surge_percent": 25,
    "log_level": "warning",
    "gateway": {
        "host": "0.0.0.0",
        "port": 9000,
        "replicas": 2,
        "replicas_per_node": 1,
        "request_timeout_s": 60,
        "max_body_bytes": 2048,
        "max_bodies_bytes": 4096,
        "max_list_items": 8,
        "max_n": 4,
        "max_sequences": 64,
        "max_answer_logprobs": 5000,
        "move_after_s": 2.5,
        "drain_timeout_s": 30.5,
        "retries": 2,
        "cpus": 1,
        "custom": {"antefix-gateway": 1},
        "cached_token_weight": 0.25,
        "links": {"Grafana": "https://grafana.example.com/dashboards?tag=antefix"},
        "tenants": {
            "crawler": {
                "limits": LIMITS,
                "model_limits": {"large": LIMITS},
                "priority": "batch",
                "operator": True,
                "engine_priority": True,
                "cache_group": "crawlers",
                "policy_header": True,
                "weight": 0.5,
            }
        },
    },
    "redis": {"url": "redis://:${PASSWORD}@redis:6379/0", "lookup_budget_ms": 2},
    "metrics": {"host": "0.0.0.0", "port": 9465},
    "gpu_budget": 16,
    "models": {
        "assistant": {
            "pools": {"large": 1},
            "aliases": ["gpt-4o-mini"],
            "canary": {
                "pool": "small",
                "steps": [5, 100.0],
                "step_s": 60.5,
                "requests": 10,
                "alpha": 0.05,
                "error_rate": 0.02,
            },
            "mirror": {"pool": "tried", "percent": 2.5},
            "select": "weight",
        },
        "sql": {
            "adapters": {"sql-1": 1, "sql-2": 0.5},
            "canary": {"adapter": "sql-3"},
        },
    },
    "pools": {
        "large": {
            "model": "org/large",
            "served_model_name": "large",
            "replicas": 2,
            "warm_replicas": 1,
            "hung_engine": "restart",
            "autoscaling": {
                "min_replicas": 0,
                "max_replicas": 4,
                "startup_s": 60,
                "downscale_hold_s": 10,
                "idle_s": 60,
            },
            "slo": {"interactive": OBJECTIVE, "batch": OBJECTIVE, "throughput": THROUGHPUT},
            "price": {"prompt": 1, "cached": 0.5, "output": 2},
            "batch_queue": 1,
            "overflow": {"to": "small", "enter": 2, "leave": 1, "max_share": 0.2},
            "max_ongoing_requests": 64,
            "max_queued_requests": 64,
            "resources": {"cpus": 8, "gpus": 2, "accelerator_type": "A100", "custom": {"a": 1}},
            "prefill_rate": 1000,
            "policy": "session",
            "shadow_policy": "prefix",
            "session_header": "x-user",
            "segment_tokens": 64,
            "env": {"HF_TOKEN": "${HF_TOKEN}"},
            "kv_tiers": {
                "host_bytes": "1Gi",
                "eviction": "arc",
                "peers": True,
                "disk": {"folder": "/cache", "max_bytes": "9Gi", "expire_s": 3600},
            },
            "prefill": {"pool": "prompts", "always": True},
            "adapters": {"sources": ["/models/adapters", "acme", "s3://bucket"]},
            "allowed_xargs": ["steer"],
            "max_media_pixels": 1_000_000,
            "engine_args": {"tensor_parallel_size": 2, "speculative-config": {"method": "ngram"}},
            "speculation": {"when_slower": "stop"},
            "resume": "exact",
            "resume_proof": "0123456789abcdef",
        },
        "small": {
            "model": "./models/small",
            "quality": {"max_kl": 0.05, "max_ppl_increase": 0.1, "min_scores": {"a/acc": 0.5}},
        },
        "tried": {"model": "./models/tried"},
        "prompts": {
            "model": "org/large",
            "served_model_name": "prompts",
            "kv_tiers": {"host_bytes": "1Gi", "peers": True},
        },
    },
}
ODD_VALUES = [
    *(None, True, 0, 1, 2, -1, 0.5, 1e9, 70000),
    *("", "a", "default", "a/b", "/m/x", "s3://bucket/x", "A b", "x" * 70, "prefix", "é"),
    *([], ["a"], {}, {"a": 1}, {"a": "b"}, {"interactive": {"ttft_s": 1}}),
]


def complaints(values: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(values)]


def places(section: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in section.items() if isinstance(section, dict) else ():
        yield (*above, name)
        yield from places(value, (*above, name))


def test_the_file_checked_in_is_current() -> None:
    assert chart_schema.FILE.read_text() == chart_schema.text(), "stale: run make chart"
    written = chart_schema.APPLICATIONS_FILE.read_text()
    assert written == chart_schema.applications_text(), "stale: run make chart"


def test_the_schema_of_the_values_is_a_valid_json_schema() -> None:
    Draft7Validator.check_schema(SCHEMA)


def test_the_schema_accepts_the_default_values() -> None:
    assert complaints(VALUES) == []


def test_the_schema_has_exactly_the_keys_of_the_values() -> None:
    assert set(_keys_of(SCHEMA, VALUES)) - {"enabled"} == {
        ".".join(place) for place in places(VALUES)
    }


def _keys_of(section: chart_schema.Schema, values: Any, above: str = "") -> Iterator[str]:
    """As far as the values have mappings whose keys are the chart's, not the user's."""
    for name, below in section["properties"].items():
        path = f"{above}{name}"
        if path in RENAMED:
            continue
        value = values.get(name)
        if value in ({}, []) and isinstance(value, dict | list):
            yield path
        elif "properties" in below:
            yield path
            yield from _keys_of(below, value or {}, f"{path}.")
        else:
            yield path
            yield from (f"{path}.{name}" for name in value) if isinstance(value, dict) else ()


def test_no_mapping_accepts_unknown_keys() -> None:
    def open_mappings(part: Any, path: str) -> Iterator[str]:
        if isinstance(part, dict):
            if "properties" in part and "additionalProperties" not in part:
                yield path
            for name, value in part.items():
                yield from open_mappings(value, f"{path}/{name}")

    assert list(open_mappings(SCHEMA, "")) == []


@pytest.mark.parametrize("file", sorted((ROOT / "fleets").glob("*.yaml")), ids=lambda f: f.stem)
def test_every_shipped_fleet_is_valid_in_the_values(file: Path) -> None:
    assert complaints({"fleet": yaml.safe_load(file.read_text())}) == []


def test_every_fleet_in_the_documentation_is_valid_in_the_values() -> None:
    texts = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    blocks = [yaml.safe_load(b) for t in texts for b in re.findall(r"```yaml\n(.*?)```", t, re.S)]
    fleets = [{"name": "part", **b} for b in blocks if isinstance(b, dict) and "pools" in b]
    usable = [fleet for fleet in fleets if _is_fleet(fleet)]
    assert len(usable) > 1
    assert [complaints({"fleet": fleet}) for fleet in usable] == [[]] * len(usable)


def _is_fleet(data: Any) -> bool:
    try:
        Fleet.model_validate(data)
    except ValidationError:
        return False
    return True


def test_the_fleet_with_every_key_has_every_key() -> None:
    assert _is_fleet(EVERY_KEY)
    names = dict.fromkeys(("large", "small", "tried", "crawler", "assistant", "sql"), "*")
    there = {tuple(names.get(name, name) for name in place) for place in places(EVERY_KEY)}
    assert set(_places_in(SCHEMA["properties"]["fleet"])) - there == set()


def _places_in(part: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(part, dict):
        return
    for name, below in part.get("properties", {}).items():
        is_refused = "const" in below or "Not a key" in below.get("description", "")
        if not is_refused:
            yield (*above, name)
            yield from _places_in(below, (*above, name))
    for below in (*part.get("patternProperties", {}).values(), part.get("additionalProperties")):
        yield from _places_in(below, (*above, "*"))


def test_the_chart_accepts_every_fleet_that_antefix_accepts() -> None:
    usable = [fleet for fleet in _with_odd_values(EVERY_KEY) if _is_fleet(fleet)]
    assert len(usable) > 200
    assert [complaints({"fleet": fleet}) for fleet in usable] == [[]] * len(usable)


def _with_odd_values(fleet: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each odd value in each place."""
    for *above, name in places(fleet):
        for odd in ODD_VALUES:
            changed = copy.deepcopy(fleet)
            section = changed
            for key in above:
                section = section[key]
            section[name] = odd
            yield changed


@pytest.mark.parametrize("case", sorted(WRONG.keys() - BEYOND_A_SCHEMA - BEYOND_VALUES))
def test_a_wrong_fleet_is_refused(case: str) -> None:
    assert complaints({"fleet": yaml.safe_load(WRONG[case][0])}) != []


@pytest.mark.parametrize("flag", RESERVED_ENGINE_ARGS)
@pytest.mark.parametrize("spelling", ["{}", "no_{}", "--{}"])
def test_a_reserved_flag_is_refused_in_every_spelling(flag: str, spelling: str) -> None:
    name = spelling.format(flag.replace("*", "x"))
    for spelled in (name, name.replace("_", "-")):
        pool = {"model": "embedded", "engine_args": {spelled: True}}
        assert complaints({"fleet": {"name": "a", "pools": {"engine": pool}}}) != []


@pytest.mark.parametrize("variable", RESERVED_ENV)
def test_a_reserved_variable_is_refused(variable: str) -> None:
    pool = {"model": "embedded", "env": {variable: "1"}}
    assert complaints({"fleet": {"name": "a", "pools": {"engine": pool}}}) != []


@pytest.mark.parametrize("key", [{"global": {"a": 1}}, {"enabled": True}])
def test_keys_that_helm_adds_to_a_subchart_are_accepted(key: dict[str, Any]) -> None:
    assert complaints({**VALUES, **key}) == []
