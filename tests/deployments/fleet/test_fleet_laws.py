"""What holds of every fleet file."""

import os
from itertools import pairwise
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from deployments.fleet.fleet import Fleet, GatewaySettings, RedisSettings
from deployments.fleet.fleet_file import FleetError, parse_fleet
from deployments.fleet.pool import Pool, ReplicaResources
from deployments.fleet.settings.environment import escaped, resolved
from deployments.fleet.settings.objectives import (
    Autoscaling,
    Objectives,
    OverflowSettings,
    Tenant,
)
from deployments.fleet.settings.quality import Quality
from deployments.fleet.settings.speculation_settings import SpeculationSettings
from observability.alerts.slo_file import Target, Throughput


def fleet_of(text: str) -> Fleet:
    return parse_fleet(text, check_engine_args=False)


KNOWN_KEYS = {
    key
    for section in (
        Autoscaling,
        Fleet,
        GatewaySettings,
        Objectives,
        OverflowSettings,
        Pool,
        Quality,
        RedisSettings,
        ReplicaResources,
        SpeculationSettings,
        Target,
        Tenant,
        Throughput,
    )
    for key in section.model_fields
}
LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
JSON = st.recursive(
    st.booleans() | st.integers(-(10**6), 10**6) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
POOLS = st.fixed_dictionaries(
    {"model": st.sampled_from(["a/b", "/models/x", "embedded"])},
    optional={
        "replicas": st.integers(1, 100),
        "warm_replicas": st.integers(0, 100),
        "max_queued_requests": st.integers(1, 10**6),
        "prefill_rate": st.floats(0.001, 1e9),
        "resources": st.fixed_dictionaries({"cpus": st.floats(0, 512)}),
        "env": st.dictionaries(st.from_regex(r"AFX_[A-F]{0,3}", fullmatch=True), TEXTS, max_size=3),
        "engine_args": st.dictionaries(
            st.sampled_from(["max_model_len", "seed", "hf_overrides"]), JSON, max_size=3
        ),
    },
)


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(LABELS, min_size=1, max_size=3, unique=True))
    slo = {"interactive": {"ttft_s": draw(st.floats(0.001, 1e6))}}
    pools = {name: {**draw(POOLS), "served_model_name": name, "slo": slo} for name in names}
    for name, next_name in pairwise(names):
        if draw(st.booleans()):
            pools[name]["overflow"] = {"to": next_name}
    ports = draw(st.lists(st.integers(1, 65535), min_size=2, max_size=2, unique=True))
    servers = {
        name: {"port": port} for name, port in zip(("gateway", "metrics"), ports, strict=True)
    }
    return {"name": draw(LABELS), **servers, "pools": pools}


@given(fleets())
def test_any_fleet_is_unchanged_after_a_round_trip(data: dict[str, Any]) -> None:
    fleet = Fleet.model_validate(data)
    # a text that looks like a URL with a user is shown without its password
    assume(not any("://" in text for pool in fleet.pools.values() for text in pool.env.values()))
    assert fleet_of(fleet.to_yaml()) == fleet


@given(fleets(), st.data(), st.from_regex(r"[a-z_]{1,12}", fullmatch=True))
def test_a_wrong_key_is_never_accepted(
    data: dict[str, Any], choice: st.DataObject, key: str
) -> None:
    pool = data["pools"][choice.draw(st.sampled_from(sorted(data["pools"])))]
    resources = pool.setdefault("resources", {})
    section = choice.draw(st.sampled_from([data, data["gateway"], pool, resources]))
    assume(key not in KNOWN_KEYS)
    section[key] = 1
    with pytest.raises(FleetError) as caught:
        fleet_of(yaml.safe_dump(data))
    assert f"{key}: unknown key" in str(caught.value)


@given(TEXTS)
def test_an_escaped_text_resolves_to_itself(text: str) -> None:
    assert resolved(escaped(text), os.environ) == (text, [])


@given(st.text(max_size=60))
def test_any_text_gives_a_fleet_or_a_fleet_error(text: str) -> None:
    with pytest.raises(FleetError):
        fleet_of(text)
