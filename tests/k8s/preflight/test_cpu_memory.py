"""Whether engines on CPUs have the memory that vLLM wants."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.fleet.pool import Pool
from deployments.fleet.weights_check import bytes_on_cpus
from k8s.preflight.cpu_memory import PROCESSES_BYTES
from tests.helm.helm import CHART, HelmError, render
from tests.k8s.asking import READY, llama, preflight_findings
from tests.k8s.objects import Object

GIB = 2**30


def on_cpus(
    model: str = "embedded", space: str = "1", dtype: str | None = "float32", **more: Any
) -> dict[str, Object]:
    env = {"VLLM_CPU_KVCACHE_SPACE": space} if space else {}
    args = {"dtype": dtype} if dtype else {}
    return {"llama": llama(model=model, resources={"gpus": 0}, env=env, engine_args=args, **more)}


def findings_by_title(pools: dict[str, Object], limit: str) -> dict[str, tuple[str, str, str]]:
    resources = {"requests": {"memory": "1Gi"}, "limits": {"memory": limit}}
    values = {"enginePods": {"resources": resources}}
    found = preflight_findings(*READY, pools=pools, values=values)
    return {
        one.title: (one.severity, one.seen, one.remedy)
        for one in found
        if one.title.startswith("memory of")
    }


def test_weights_of_known_models_are_counted() -> None:
    severity, seen, remedy = findings_by_title(on_cpus("meta-llama/Llama-3.2-1B-Instruct"), "7Gi")[
        "memory of llama"
    ]
    assert severity == "problem"
    assert seen == (
        "a limit of 7 GiB is too small for 1 GiB of KV cache, 4.6 GiB of weights and 1.67 GiB of "
        "processes: vLLM would refuse to start"
    )
    assert remedy.startswith("set enginePods.resources.limits.memory to 8Gi or more, or lower")


@pytest.mark.parametrize(
    "model, limit, seen",
    [
        ("embedded", "4Gi", "4 GiB for 1 GiB of KV cache, 0.501 GiB of weights"),
        ("org/unknown", "3Gi", "3 GiB for 1 GiB of KV cache, weights of unknown size"),
    ],
)
def test_an_engine_that_fits_is_reported_with_its_known_sizes(
    model: str, limit: str, seen: str
) -> None:
    severity, shown, _ = findings_by_title(on_cpus(model), limit)["memory of llama"]
    assert (severity, shown[: len(seen)]) == ("ok", seen)


def test_an_engine_without_a_configured_cache_size_is_not_judged() -> None:
    assert findings_by_title(on_cpus(space=""), "1Gi") == {}


def test_helm_rejects_former_laptop_values_and_states_the_memory_that_fits() -> None:
    as_it_was = ("--set", "enginePods.resources.limits.memory=3Gi")
    with pytest.raises(HelmError) as error:
        render(CHART / "values" / "laptop-kind.yaml", *as_it_was)
    assert (
        "enginePods.resources.limits.memory is 3Gi: vLLM would refuse to start engines of small, "
        "whose KV cache, weights and processes take 3.17 GiB. Set it to 4Gi or more, or lower "
        "VLLM_CPU_KVCACHE_SPACE"
    ) in str(error.value)


@pytest.mark.parametrize("dtype", [None, "auto"])
def test_preflight_warns_of_float32_where_the_cpu_decides_the_dtype(dtype: str | None) -> None:
    pools = on_cpus("meta-llama/Llama-3.2-1B-Instruct", dtype=dtype)
    assert findings_by_title(pools, "8Gi")["memory of llama"][0] == "ok"
    severity, seen, remedy = findings_by_title(pools, "6Gi")["memory of llama"]
    assert severity == "warning"
    assert seen.endswith("on a CPU without bfloat16, where it computes in float32")
    assert remedy.endswith("or set engine_args.dtype to bfloat16")
    assert findings_by_title(pools, "4Gi")["memory of llama"][0] == "problem"
    pools = on_cpus("meta-llama/Llama-3.2-1B-Instruct", dtype="bfloat16")
    assert findings_by_title(pools, "6Gi")["memory of llama"][0] == "ok"


@pytest.mark.parametrize("dtype", [None, "auto", "float", "float32", "bfloat16"])
@pytest.mark.parametrize("model", ["embedded", "org/unknown"])
def test_helm_computes_the_same_memory_as_preflight(model: str, dtype: str | None) -> None:
    pool = Pool.model_validate(on_cpus(model, dtype=dtype)["llama"])
    weights = bytes_on_cpus(pool)
    need = GIB + (weights.most if weights else 0) + PROCESSES_BYTES
    for limit, fits in ((need - 2**20, False), (need + 2**20, True)):
        engine = {"resources": {"limits": {"memory": str(limit)}}}
        fleet = {"name": "x", "pools": on_cpus(model, dtype=dtype)}
        given = {"fleet": fleet, "enginePods": engine}
        if fits:
            render(given)
        else:
            with pytest.raises(HelmError, match="vLLM would refuse to start"):
                render(given)


def test_the_assumed_memory_of_processes_is_the_measured_one() -> None:
    """3248 MiB in all, of which 1 GiB is cache and 135M parameters are in float32."""
    assert pytest.approx(PROCESSES_BYTES, abs=2**20) == 3248 * 2**20 - GIB - 538_060_032
