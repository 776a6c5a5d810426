"""What the chart gives to KubeRay: the fleet, the groups of pods, the clients' Service."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr as autoscaling_config,
)

from deployments.fleet.applications import serve_config
from tests.helm.crd import faults_of
from tests.helm.helm import CHART, HelmError, Object, of_kind, render, run
from tests.helm.ray_service import (
    CI,
    config,
    container,
    custom,
    every_group,
    fleet,
    groups,
    head,
    of_fleet,
    pods,
    ray_service,
)
from tests.some import some

ONE_POOL = {"chat": {"model": "Qwen/Qwen2.5-7B-Instruct"}}


class TestTheApplication:
    def test_ray_serve_runs_the_fleet_without_its_own_proxy(self, minimal: Object) -> None:
        gateways, pool = config(minimal)["applications"]
        assert config(minimal)["proxy_location"] == "Disabled"
        assert gateways["import_path"] == "deployments.app:build_gateways"
        assert pool["import_path"] == "deployments.app:build_pool"
        assert [of["name"] for of in (gateways, pool)] == ["antefix", "antefix-chat"]
        assert [of["route_prefix"] for of in (gateways, pool)] == [None, None]

    @pytest.mark.parametrize("file", [*CI.glob("*.yaml"), *(CHART / "values").glob("*.yaml")])
    def test_the_serve_configuration_equals_that_of_antefix(self, file: Path) -> None:
        """Where it restarts only what it must."""
        found = of_kind(render(file), "RayService")
        assert config(found) == serve_config(fleet(found))

    def test_the_minimal_fleet_gets_the_addresses_of_the_chart(self, minimal: Object) -> None:
        assert fleet(minimal) == {
            "name": "minimal",
            "gateway": {
                "host": "0.0.0.0",
                "replicas_per_node": 1,
                "custom": {"antefix-gateway": 1},
            },
            "metrics": {"host": "0.0.0.0"},
            "redis": {"url": "redis://:${ANTEFIX_REDIS_PASSWORD}@afx-antefix-redis:6379/0"},
            "pools": {
                "chat": {
                    "model": "Qwen/Qwen2.5-7B-Instruct",
                    "resources": {"gpus": 1, "custom": {"antefix-pool-chat": 1}},
                }
            },
        }

    def test_numbers_stay_numbers(self, full: Object) -> None:
        gateway = fleet(full)["gateway"]
        assert (gateway["max_body_bytes"], gateway["port"]) == (33554433, 9000)
        assert fleet(full)["redis"]["lookup_budget_ms"] == 7.5

    def test_gpus_are_what_the_parallelism_uses_however_it_is_spelled(self, stages: Object) -> None:
        assert fleet(stages)["pools"]["large"]["resources"]["gpus"] == 16
        assert fleet(stages)["pools"]["small"]["resources"]["gpus"] == 0.5

    def test_the_accelerator_type_is_not_passed_to_ray(self) -> None:
        found = of_fleet({"chat": {"model": "a/b", "resources": {"accelerator_type": "A100"}}})
        assert "accelerator_type" not in fleet(found)["pools"]["chat"]["resources"]

    def test_a_null_stands_for_the_default(self, cpu_only: Object) -> None:
        assert pods(groups(cpu_only)["gateway"]) == (0, 1, 1000)
        assert fleet(cpu_only)["gateway"]["host"] == "0.0.0.0"
        assert fleet(cpu_only)["pools"]["other"]["resources"] == {
            "gpus": 0,
            "custom": {"antefix-pool-other": 1},
        }

    def test_an_external_redis_is_in_the_fleet_unless_its_address_is_secret(
        self, existing: Object
    ) -> None:
        assert fleet(ray_service("external-redis"))["redis"]["url"].endswith("acme.internal:6380/2")
        assert "redis" not in fleet(existing)


class TestGroups:
    def test_the_gateway_group_has_the_replicas_of_the_fleet(self, full: Object) -> None:
        gateway = groups(full)["gateway"]
        assert pods(gateway) == (0, 2, 1000)
        assert custom(gateway) == {"antefix-gateway": 1}
        assert gateway["rayStartParams"]["num-gpus"] == "0"

    def test_kuberay_and_a_shell_find_the_same_custom_resources(self, minimal: Object) -> None:
        given = groups(minimal)["gateway"]["rayStartParams"]["resources"]
        assert given == """'{"antefix-gateway":1}'"""
        # KubeRay: getResourcesMap of controllers/ray/common/pod.go
        assert json.loads(given.strip("'\"` ")) == {"antefix-gateway": 1}
        assert (
            shlex.split(f"ray start --resources={given}")[-1] == '--resources={"antefix-gateway":1}'
        )

    def test_one_pod_is_one_replica(self, full: Object) -> None:
        chat = groups(full)["chat"]
        assert pods(chat) == (0, 3, 1000)
        assert custom(chat) == {"antefix-pool-chat": 1}
        assert chat["rayStartParams"]["num-gpus"] == "2"
        for kind in ("requests", "limits"):
            assert container(chat)["resources"][kind]["nvidia.com/gpu"] == "2"

    def test_pipeline_stages_run_on_separate_pods(self, stages: Object) -> None:
        large = groups(stages)["large"]
        assert pods(large) == (0, 2, 1000)
        assert container(large)["resources"]["limits"]["nvidia.com/gpu"] == "8"
        # each worker asks for one, in addition to its GPU
        assert custom(large) == {"antefix-pool-large": 8}

    def test_processes_without_ray_stay_in_one_pod(self) -> None:
        sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
        found = of_fleet(
            {
                "mp": {
                    "model": "a/b",
                    "engine_args": {**sizes, "distributed_executor_backend": "mp"},
                },
                "cpu": {"model": "a/b", "engine_args": sizes, "resources": {"gpus": 0}},
            }
        )
        assert pods(groups(found)["mp"]) == (0, 1, 1000)
        assert container(groups(found)["mp"])["resources"]["limits"]["nvidia.com/gpu"] == "4"
        assert pods(groups(found)["cpu"]) == (0, 1, 1000)

    def test_an_engine_with_a_fraction_of_a_gpu_has_a_pod_with_one_gpu(
        self, stages: Object
    ) -> None:
        small = groups(stages)["small"]
        assert small["rayStartParams"]["num-gpus"] == "1"
        assert custom(small) == {"antefix-pool-small": 1, "fast-disk": 1}

    def test_engines_without_gpus_have_the_cpu_image_and_no_gpu(self, cpu_only: Object) -> None:
        engine = groups(cpu_only)["engine"]
        assert container(engine)["image"] == "registry.acme.internal/antefix-cpu:0.1.0"
        assert container(engine)["resources"]["requests"] == {"cpu": "1", "memory": "3Gi"}
        assert engine["rayStartParams"]["num-gpus"] == "0"

    def test_pods_follow_the_pools_autoscaling(self, autoscaled: Object) -> None:
        """Ray Serve asks for them, within the fleet's bounds; KubeRay would not apply others."""
        assert pods(groups(autoscaled)["sleeper"]) == (0, 1, 1000)
        assert pods(groups(autoscaled)["spiky"]) == (0, 4, 1000)

    def test_the_autoscaler_gets_its_options(self, autoscaled: Object) -> None:
        cluster = autoscaled["spec"]["rayClusterConfig"]
        assert cluster["enableInTreeAutoscaling"] is True
        options = cluster["autoscalerOptions"]
        assert (options["version"], options["idleTimeoutSeconds"]) == ("v2", 60)
        assert options["upscalingMode"] == "Aggressive"
        assert options["securityContext"]["allowPrivilegeEscalation"] is False

    def test_rays_own_autoscaler_reads_every_group(self, stages: Object) -> None:
        cluster = {
            "metadata": {"name": "x", "namespace": "llm"},
            "spec": stages["spec"]["rayClusterConfig"],
        }
        types = autoscaling_config(cluster)["available_node_types"]
        large = types["large"]
        assert (large["min_workers"], large["max_workers"]) == (0, 1000)
        memory = large["resources"].pop("memory")
        assert large["resources"] == {"CPU": 4, "GPU": 8, "antefix-pool-large": 8}
        assert memory == 64 * 2**30
        assert types["gateway"]["resources"]["antefix-gateway"] == 1
        assert types["headgroup"]["resources"]["CPU"] == 0

    def test_without_the_autoscaler_the_maximum_number_of_pods_is_rendered(self) -> None:
        grows = {"chat": {"model": "a/b", "autoscaling": {"max_replicas": 2}}}
        off = of_fleet(grows, rayAutoscaler={"enabled": False})
        assert off["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"] is False
        assert "autoscalerOptions" not in off["spec"]["rayClusterConfig"]
        assert pods(groups(off)["chat"]) == (2, 2, 2)
        assert pods(groups(off)["gateway"]) == (1, 1, 1)

    def test_without_the_autoscaler_changed_replica_counts_need_a_new_cluster(self) -> None:
        """KubeRay leaves numbers of replicas out of what it compares."""
        fleets = [{"gateway": {"replicas": replicas}} for replicas in (1, 2)]
        heads = [
            head(of_fleet(ONE_POOL, rayAutoscaler={"enabled": on}, fleet=given))
            for on in (False, True)
            for given in fleets
        ]
        assert heads[0] != heads[1] and heads[2] == heads[3]

    def test_rays_ports_are_the_same_in_every_pod(self, full: Object) -> None:
        for group in some(every_group(full).values()):
            parameters = group["rayStartParams"]
            assert parameters["node-manager-port"] == "6380"
            assert parameters["min-worker-port"] == "10002"
            assert parameters["max-worker-port"] == "19999"
            assert all(isinstance(value, str) for value in parameters.values())

    def test_no_process_of_antefix_runs_on_the_head(self, full: Object) -> None:
        assert head(full)["rayStartParams"]["num-cpus"] == "0"
        assert head(full)["rayStartParams"]["dashboard-host"] == "0.0.0.0"


class TestFaultTolerance:
    def test_the_head_stores_its_state_in_the_charts_redis(self, full: Object) -> None:
        options = full["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
        assert options["redisAddress"] == "redis://afx-antefix-redis:6379"
        secret = options["redisPassword"]["valueFrom"]["secretKeyRef"]
        assert secret == {"name": "afx-antefix-redis", "key": "password"}

    def test_the_head_stores_its_state_in_an_external_redis_without_a_database_number(self) -> None:
        options = ray_service("external-redis")["spec"]["rayClusterConfig"][
            "gcsFaultToleranceOptions"
        ]
        assert options == {"redisAddress": "rediss://redis.acme.internal:6380"}

    def test_gcs_fault_tolerance_is_disabled_by_default(self, minimal: Object) -> None:
        assert "gcsFaultToleranceOptions" not in minimal["spec"]["rayClusterConfig"]


class TestNames:
    @pytest.mark.parametrize(
        ("release", "name"),
        [
            ("llm", "llm-antefix"),
            ("antefix", "antefix"),
            ("my-antefix-2", "my-antefix-2"),
            ("a" * 32, "a" * 32 + "-antefix"),
        ],
    )
    def test_objects_are_named_after_the_release(self, release: str, name: str) -> None:
        given = ["--values", str(CI / "minimal-values.yaml")]
        only = ["--show-only", "templates/rayservice.yaml"]
        found = yaml.safe_load(run("template", release, str(CHART), *given, *only))
        assert faults_of(found) == []
        assert found["metadata"]["name"] == name

    def test_releases_with_the_same_prefix_have_objects_with_different_names(self) -> None:
        given = ["--values", str(CI / "minimal-values.yaml")]
        only = ["--show-only", "templates/rayservice.yaml"]
        names = set()
        for end in ("-one", "-two"):
            text = run("template", "a" * 45 + end, str(CHART), *given, *only)
            names.add(yaml.safe_load(text)["metadata"]["name"])
        assert len(names) == 2
        assert all(len(name) == 40 and name.startswith("a" * 33) for name in names)

    def test_the_rayservice_has_the_configured_name(self, existing: Object) -> None:
        assert existing["metadata"]["name"] == "llm"

    def test_a_release_name_that_kuberay_refuses_is_an_error(self) -> None:
        minimal = str(CI / "minimal-values.yaml")
        with pytest.raises(HelmError, match=r"called 1st-antefix.*Set fullnameOverride"):
            run("template", "1st", str(CHART), "--values", minimal)

    def test_the_upgrade_strategy_follows_the_values(
        self, autoscaled: Object, minimal: Object
    ) -> None:
        assert minimal["spec"]["upgradeStrategy"] == {"type": "NewCluster"}
        assert minimal["spec"]["rayClusterDeletionDelaySeconds"] == 60
        assert autoscaled["spec"]["upgradeStrategy"] == {"type": "None"}
        assert autoscaled["spec"]["rayClusterDeletionDelaySeconds"] == 0
