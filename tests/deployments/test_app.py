"""Where replicas may run, and what the applications are built from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray import cloudpickle
from ray.serve import Application, Deployment
from ray.serve.config import AutoscalingConfig

from common.errors import Problem
from deployments import app
from deployments.app import applications, as_deployed, build_gateways, build_pool, placement_options
from deployments.autoscaler import PoolAutoscaler, autoscaling_config
from deployments.fleet.applications import (
    GATEWAYS_APPLICATION,
    application_of,
    args_of_gateways,
    args_of_pool,
    serve_config,
)
from deployments.fleet.fleet import MOST_N, Fleet
from deployments.fleet.fleet_file import FleetError
from deployments.fleet.pool import Pool
from deployments.gateway.gateway_parts import Secrets
from router.redis.redis_keys import fleet_id
from tests.deployments.one_pool import BLUE_KEY, ENVIRONMENT, KEY, REDIS_URL, fleet_of, pool_of

POOL = {"model": "org/model"}


@pytest.fixture(autouse=True)
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "has_cpu_build", lambda: False)


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch, gpu_build: None) -> None:
    monkeypatch.setattr(app, "has_cpu_build", lambda: True)


def deployment_of(application: Application) -> Deployment:
    """The only one that it has."""
    return application._bound_deployment


def options_of(deployment: Deployment) -> SimpleNamespace:
    """What Ray Serve was given, which it shows of no deployment."""
    return SimpleNamespace(
        **vars(deployment._replica_config), **dict(deployment._deployment_config)
    )


def _arguments(deployment: Deployment) -> tuple[Any, ...]:
    return cast(tuple[Any, ...], deployment.init_args)


def built(fleet: Fleet) -> dict[str, Deployment]:
    """By name."""
    found = applications(fleet, Secrets({"key": "tenant"}, "secret", REDIS_URL))
    return {of.name: of for of in map(deployment_of, found.values())}


def engine_args_of_a_replica(pool: Pool) -> dict[str, Any]:
    given = _arguments(built(fleet_of(pool))["engine"])
    return dict(next(argument for argument in given if isinstance(argument, Pool)).engine_args)


# --- where replicas may run -----------------------------------------------------------------


def test_a_replica_without_parallelism_takes_one_gpu() -> None:
    options = placement_options(pool_of())
    assert options["ray_actor_options"]["num_gpus"] == 1
    assert "placement_group_bundles" not in options


def test_tensor_parallel_is_one_actor_with_all_its_gpus() -> None:
    options = placement_options(pool_of(tp=4))
    assert options["ray_actor_options"]["num_gpus"] == 4
    assert "placement_group_bundles" not in options


def test_pipeline_parallel_has_a_bundle_per_gpu_and_the_replica_in_the_first() -> None:
    options = placement_options(pool_of(tp=2, pp=2, resources={"cpus": 3.0}))
    assert options["placement_group_bundles"] == [{"CPU": 3.0, "GPU": 1.0}, *[{"GPU": 1.0}] * 3]
    assert options["placement_group_strategy"] == "PACK"
    assert "num_gpus" not in options["ray_actor_options"]


def test_the_replica_fits_into_the_first_bundle_as_ray_serve_asks() -> None:
    """Ray Serve itself refuses the deployment otherwise."""
    deployments = built(fleet_of(pool_of(tp=2, pp=2)))
    assert len(options_of(deployments["engine"]).placement_group_bundles or ()) == 4


def test_every_gpu_bundle_requests_the_accelerator_type() -> None:
    resources = {"accelerator_type": "A100", "custom": {"rack": 1.0}}
    asked = {"accelerator_type:A100": 0.001, "rack": 1.0}
    inside = placement_options(pool_of(tp=2, resources=resources))
    assert inside["ray_actor_options"]["resources"] == asked
    across = placement_options(pool_of(pp=2, resources=resources))
    assert across["placement_group_bundles"] == [
        {"CPU": 1.0, "GPU": 1.0, **asked},
        {"GPU": 1.0, **asked},
    ]


def test_gpus_of_the_fleet_file_override_the_default() -> None:
    options = placement_options(pool_of(resources={"gpus": 0.5}))
    assert options["ray_actor_options"]["num_gpus"] == 0.5


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.usefixtures("cpu_build")
def test_the_cpu_build_takes_no_gpu_and_stays_in_one_actor(tp: int, pp: int) -> None:
    options = placement_options(pool_of(tp=tp, pp=pp))
    assert options["ray_actor_options"]["num_gpus"] == 0
    assert "placement_group_bundles" not in options


def test_a_pipeline_of_processes_stays_in_one_actor() -> None:
    options = placement_options(pool_of(tp=2, pp=2, backend="mp"))
    assert options["ray_actor_options"]["num_gpus"] == 4
    assert "placement_group_bundles" not in options


def test_all_replicas_hash_prefixes_the_same_way_and_report_all_events() -> None:
    options = placement_options(pool_of(env={"MY_SWITCH": "1"}))
    env = options["ray_actor_options"]["runtime_env"]["env_vars"]
    assert (env["PYTHONHASHSEED"], env["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"]) == ("0", "0")
    assert env["MY_SWITCH"] == "1"


def test_an_engine_follows_no_redirect_and_bounds_the_answers_of_a_request() -> None:
    options = placement_options(pool_of(env={"MY_SWITCH": "1"}))
    env = options["ray_actor_options"]["runtime_env"]["env_vars"]
    assert env["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert env["VLLM_MAX_N_SEQUENCES"] == str(MOST_N)


def test_an_engine_accepts_more_stop_strings_than_openai() -> None:
    """Anthropic has no limit of four."""
    options = placement_options(pool_of(env={"VLLM_MAX_STOP_STRINGS": "9"}))
    assert options["ray_actor_options"]["runtime_env"]["env_vars"]["VLLM_MAX_STOP_STRINGS"] == "9"
    env = placement_options(pool_of())["ray_actor_options"]["runtime_env"]["env_vars"]
    assert int(env["VLLM_MAX_STOP_STRINGS"]) > 4


def test_an_engine_sends_usage_data_only_where_enabled() -> None:
    def of(**env: str) -> str:
        options = placement_options(pool_of(env=env))
        return str(options["ray_actor_options"]["runtime_env"]["env_vars"]["DO_NOT_TRACK"])

    assert of() == "1"
    assert of(DO_NOT_TRACK="0") == "0"


@pytest.mark.usefixtures("cpu_build")
def test_threads_of_engines_that_share_cores_do_not_spin() -> None:
    def policy(**env: str) -> str:
        options = placement_options(pool_of(env=env))
        return str(options["ray_actor_options"]["runtime_env"]["env_vars"]["OMP_WAIT_POLICY"])

    assert policy() == "PASSIVE"
    assert policy(OMP_WAIT_POLICY="ACTIVE") == "ACTIVE"


# --- what a replica receives -----------------------------------------------------------------


def test_a_pipeline_across_nodes_runs_on_ray() -> None:
    assert engine_args_of_a_replica(pool_of(pp=2))["distributed_executor_backend"] == "ray"


def test_the_executor_of_the_fleet_file_overrides_the_default() -> None:
    engine_args = engine_args_of_a_replica(pool_of(pp=2, backend="mp"))
    assert engine_args["distributed_executor_backend"] == "mp"


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1)])
def test_the_executor_inside_a_node_is_left_to_vllm(tp: int, pp: int) -> None:
    engine_args = engine_args_of_a_replica(pool_of(tp=tp, pp=pp))
    assert (engine_args["tensor_parallel_size"], engine_args["pipeline_parallel_size"]) == (tp, pp)
    assert "distributed_executor_backend" not in engine_args


@pytest.mark.usefixtures("cpu_build")
def test_the_cpu_build_gets_no_ray_executor_backend() -> None:
    engine_args = engine_args_of_a_replica(pool_of(pp=2))
    assert engine_args["pipeline_parallel_size"] == 2
    assert "distributed_executor_backend" not in engine_args


# --- the application ------------------------------------------------------------------------


SLO = {"interactive": {"ttft_s": 2.0}}


def test_warm_replicas_are_deployed_too() -> None:
    assert _scaling(replicas=2, warm_replicas=1, slo=SLO).initial_replicas == 3


def test_ray_serve_gets_neither_bounds_nor_delays() -> None:
    """Ray Serve would have to learn of changed ones, and would forget what was decided."""
    bounds = {"min_replicas": 1, "max_replicas": 4}
    scaled = _scaling(replicas=2, autoscaling=bounds, slo=SLO)
    assert (scaled.min_replicas, scaled.initial_replicas) == (0, 2)
    other = _scaling(replicas=2, autoscaling={"max_replicas": 8}, slo=SLO)
    # the policy comes with it, and is set in other ways
    assert scaled == other
    assert (scaled.upscale_delay_s, scaled.downscale_delay_s) == (0.0, 0.0)


def test_the_policy_that_ray_serve_gets_is_the_pools_own_and_shows_no_secret() -> None:
    scaled = _scaling(autoscaling={"max_replicas": 4}, slo=SLO)
    assert isinstance(scaled.policy.get_policy(), PoolAutoscaler)
    assert REDIS_URL not in repr(scaled) + str(scaled.policy.policy_kwargs)


def _scaling(**pool: Any) -> AutoscalingConfig:
    deployment = built(fleet_of(pool_of(**pool)))["engine"]
    config: AutoscalingConfig | None = options_of(deployment).autoscaling_config
    assert config is not None
    return config


@pytest.mark.parametrize("limit", [None, 1])
def test_the_number_of_gateways_per_node_is_limited_if_configured(limit: int | None) -> None:
    fleet = fleet_of(pool_of(), gateway={"replicas": 2, "replicas_per_node": limit})
    gateway = built(fleet)["gateway"]
    assert gateway.num_replicas == 2
    assert options_of(gateway).max_replicas_per_node == limit


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(app, "_get_global_client", lambda **_: None)
    return monkeypatch


@pytest.mark.usefixtures("environment")
def test_gateways_are_built_from_cold_settings_and_the_environment() -> None:
    cold = {"name": "test", "gateway": {"custom": {"front": 1}}}
    gateway = deployment_of(build_gateways({"fleet": cold}))
    assert gateway.ray_actor_options is not None
    assert gateway.ray_actor_options["resources"] == {"front": 1}
    base, secrets = _arguments(gateway)
    assert base.name == "test"
    assert secrets.api_keys == {KEY: "red", BLUE_KEY: "blue"}
    with pytest.raises(FleetError, match=r"gateway\.prot: unknown key"):
        build_gateways({"fleet": {"name": "test", "gateway": {"prot": 1}}})


@pytest.mark.usefixtures("environment")
def test_a_pool_is_built_from_cold_settings_and_its_ray_serve_options() -> None:
    fleet = {"name": "test", "pools": {"engine": {**POOL, "replicas": 2}, "other": POOL}}
    engine = deployment_of(build_pool(args_of_pool(fleet, "engine")))
    assert options_of(engine).autoscaling_config is not None
    with pytest.raises(FleetError, match=r"pools\.engine\.modle: unknown key"):
        build_pool({"fleet": {"name": "test", "pools": {"engine": {"modle": "x"}}}})


def details(fleet: dict[str, Any]) -> dict[str, Any]:
    """As Ray Serve describes itself, in part."""
    return {
        "applications": {"antefix": {"deployed_app_config": serve_config(fleet)["applications"][0]}}
    }


def test_a_built_pool_also_has_its_hot_settings() -> None:
    given = {"name": "test", "surge_percent": 100, "pools": {"engine": {**POOL, "replicas": 2}}}
    cold = Fleet.model_validate(args_of_pool(given, "engine")["fleet"])
    fleet = as_deployed(cold, details(given))
    assert (fleet.pools["engine"].replicas, fleet.surge_percent) == (2, 100)


@pytest.mark.parametrize(("last", "first"), [(None, 2), (5, 5), (0, 0)])
def test_a_redeployed_pool_starts_with_its_last_number_of_replicas(
    last: int | None, first: int
) -> None:
    fleet = fleet_of(pool_of(replicas=2))
    config = autoscaling_config(fleet, "engine", 0.0, REDIS_URL, signer=None, replicas=last)
    assert config.initial_replicas == first


@pytest.mark.parametrize("user_config", [None, {}, {"name": "test", "pools": {}}])
def test_a_pool_starts_with_unusable_settings(user_config: Any) -> None:
    given: dict[str, Any] = {"name": "test", "pools": {"engine": POOL}}
    cold = Fleet.model_validate(args_of_pool(given, "engine")["fleet"])
    told = details(given)
    (deployment,) = told["applications"]["antefix"]["deployed_app_config"]["deployments"]
    deployment["user_config"] = user_config
    assert as_deployed(cold, told) == cold
    assert as_deployed(cold, {}) == cold


def test_a_rollout_may_start_new_replicas_before_it_stops_old_ones() -> None:
    surging = built(fleet_of(pool_of(), surge_percent=25))
    assert {options_of(d).max_surge_percent for d in surging.values()} == {25}
    stopping_first = built(fleet_of(pool_of()))
    assert {options_of(d).max_surge_percent for d in stopping_first.values()} == {0}


def test_two_clusters_of_one_fleet_do_not_count_each_others_replicas(
    environment: pytest.MonkeyPatch,
) -> None:
    """Kubernetes runs both for a while in an upgrade, with one Redis."""
    given = {"name": "test", "pools": {"engine": POOL}}
    boards = set()
    for cluster in ("blue", "green"):
        environment.setenv("ANTEFIX_CLUSTER", cluster)
        base = _arguments(deployment_of(build_gateways(args_of_gateways(given))))[0]
        base = cloudpickle.loads(cloudpickle.dumps(base))  # type: ignore[no-untyped-call]
        fleet = base.applied_to(Fleet.model_validate(given))
        engine = deployment_of(build_pool(args_of_pool(given, "engine")))
        assert _arguments(engine)[0] == fleet.board_of("engine")
        boards.add(fleet.board_of("engine"))
    name = f"test.{fleet_id(ENVIRONMENT['ANTEFIX_ENGINE_SECRET'])}"
    assert boards == {f"{name}@blue/engine", f"{name}@green/engine"}


@pytest.mark.parametrize(
    "url", ["redis://:pw@h?nonsense=1", "redis+sentinel://:pw@h", "redis://:pw@h?ssl_ca_certs=/c"]
)
def test_a_redis_url_that_cannot_work_is_refused_at_the_start(
    environment: pytest.MonkeyPatch, url: str
) -> None:
    environment.setenv("ANTEFIX_REDIS_URL", url)
    with pytest.raises(Problem, match="cannot be used") as refused:
        build_gateways(args_of_gateways({"name": "test", "pools": {"engine": POOL}}))
    assert "pw" not in str(refused.value)


def test_two_fleets_with_the_same_name_have_separate_boards(
    environment: pytest.MonkeyPatch,
) -> None:
    given = {"name": "test", "pools": {"engine": POOL}}
    names, boards = set(), set()
    for secret in ("one secret", "another secret"):
        environment.setenv("ANTEFIX_ENGINE_SECRET", secret)
        base = _arguments(deployment_of(build_gateways(args_of_gateways(given))))[0]
        names |= {base.board, base.redis_name}
        boards.add(_arguments(deployment_of(build_pool(args_of_pool(given, "engine"))))[0])
    assert len(names) == len(boards) == 2
    assert not any(secret in name for name in names for secret in ("one", "another"))


def test_a_fleet_has_the_same_board_on_a_laptop_and_on_kubernetes(
    environment: pytest.MonkeyPatch,
) -> None:
    fleet = fleet_of(Pool.model_validate(POOL))
    secrets = Secrets({}, ENVIRONMENT["ANTEFIX_ENGINE_SECRET"], REDIS_URL)
    built = applications(fleet, secrets)
    local = {name: _arguments(deployment_of(of)) for name, of in built.items()}
    told = args_of_pool({"name": "test", "pools": {"engine": POOL}}, "engine")
    assert local[application_of("engine")][0] == _arguments(deployment_of(build_pool(told)))[0]
    assert local[GATEWAYS_APPLICATION][0].board == fleet.with_secret(secrets.engine_secret).board
