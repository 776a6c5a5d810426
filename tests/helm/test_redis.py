"""The chart's Redis, and its configuration as a real redis-server takes it."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.local.redis_server import find_executable
from tests.helm.fleets import values
from tests.helm.helm import (
    NAMESPACE,
    HelmError,
    Object,
    all_of_kind,
    of_kind,
    render,
    template,
)
from tests.k8s.api import Api
from tests.k8s.kinds import crd
from tests.ports import free_ports

PASSWORD = 'odd "quotes", \\ and $HOME `id` #'
MEMORY_LIMIT = 100_000_000


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return render(values(), show_only="templates/redis.yaml")


@pytest.fixture(scope="module")
def kept() -> list[Object]:
    return render(
        values(redis={"persistence": {"enabled": True, "size": "3Gi", "storageClass": "fast"}}),
        show_only="templates/redis.yaml",
    )


def test_redis_accepts_the_password_of_the_secret(objects: list[Object], tmp_path: Path) -> None:
    with running(objects, tmp_path) as client:
        assert client.ping()


def test_redis_refuses_clients_without_the_password(objects: list[Object], tmp_path: Path) -> None:
    with running(objects, tmp_path) as client:
        port = client.get_connection_kwargs()["port"]
        stranger = redis.Redis(port=port, retry=Retry(NoBackoff(), retries=0))
        with pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_redis_stays_below_its_memory_limit_and_evicts_expiring_keys_first(
    objects: list[Object], tmp_path: Path
) -> None:
    with running(objects, tmp_path) as client:
        settings = client.config_get("maxmemory*")
    assert int(settings["maxmemory"] or 0) == MEMORY_LIMIT * 8 // 10
    assert settings["maxmemory-policy"] == "volatile-lru"


def test_redis_writes_nothing_without_persistence(objects: list[Object], tmp_path: Path) -> None:
    with running(objects, tmp_path) as client:
        client.set("a", 1)
    assert not list(tmp_path.iterdir())
    assert _pod(objects)["volumes"] == [{"name": "data", "emptyDir": {}}]


def test_persistent_data_survives_a_restart(kept: list[Object], tmp_path: Path) -> None:
    with running(kept, tmp_path) as client:
        client.set("a", 1)
    with running(kept, tmp_path) as client:
        assert client.get("a") == "1"


def test_persistence_claims_a_volume_of_the_configured_class_and_size(kept: list[Object]) -> None:
    # not the name of one without: claims cannot be added to an existing StatefulSet
    assert of_kind(kept, "StatefulSet")["metadata"]["name"] == "afx-antefix-redis-data"
    (claim,) = of_kind(kept, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "3Gi"}}


def test_the_password_is_on_no_command_line(objects: list[Object], tmp_path: Path) -> None:
    with running(objects, tmp_path) as client:
        pid = client.info("server")["process_id"]
        assert PASSWORD not in Path(f"/proc/{pid}/cmdline").read_text()


def test_the_memory_limit_is_the_containers_own(objects: list[Object]) -> None:
    env = {item["name"]: item["valueFrom"] for item in _container(objects)["env"]}
    assert env["MEMORY_LIMIT"]["resourceFieldRef"] == {
        "containerName": "redis",
        "resource": "limits.memory",
        "divisor": "1",
    }


def test_without_a_memory_limit_it_is_refused() -> None:
    with pytest.raises(HelmError, match=r"redis\.resources\.limits\.memory is not set"):
        template(values(redis={"resources": {"limits": None}}))


def test_the_chart_makes_a_password_of_40_characters(objects: list[Object]) -> None:
    secret = of_kind(objects, "Secret")
    assert len(secret["data"]["password"]) == 56  # base64 of 40
    assert _secret_of(objects) == {"name": "afx-antefix-redis", "key": "password"}


def test_an_upgrade_keeps_the_password(objects: list[Object]) -> None:
    made = of_kind(objects, "Secret")
    made["metadata"]["namespace"] = NAMESPACE
    with Api(crd("ray.io", "RayService", "v1"), made) as api:
        again = render(
            values(),
            *("--is-upgrade", "--dry-run=server", "--disable-openapi-validation"),
            *("--kubeconfig", str(api.kubeconfig)),
            show_only="templates/redis.yaml",
        )
    assert of_kind(again, "Secret")["data"] == made["data"]


def test_an_existing_secret_is_used_and_none_is_made() -> None:
    objects = render(values(redis={"existingSecret": "mine"}), show_only="templates/redis.yaml")
    assert not all_of_kind(objects, "Secret")
    assert _secret_of(objects) == {"name": "mine", "key": "password"}


def test_with_an_external_redis_no_redis_is_rendered() -> None:
    external = {"enabled": False, "external": {"url": "redis://elsewhere:6379/0"}}
    objects = render(values(redis=external))
    assert not [o for o in objects if o["metadata"]["name"].endswith("-redis")]


def test_the_service_selects_the_pod_and_the_pod_only(objects: list[Object]) -> None:
    selector = of_kind(objects, "Service")["spec"]["selector"]
    stateful = of_kind(objects, "StatefulSet")["spec"]
    assert (
        selector
        == stateful["selector"]["matchLabels"]
        == stateful["template"]["metadata"]["labels"]
    )
    assert selector == {"app.kubernetes.io/instance": "afx", "antefix/component": "redis"}


def test_the_redis_container_has_a_read_only_root_filesystem(objects: list[Object]) -> None:
    assert _container(objects)["securityContext"]["readOnlyRootFilesystem"]


@contextmanager
def running(objects: list[Object], data: Path) -> Iterator["redis.Redis"]:
    """The rendered command with a free port, `data` as its volume, and the pod's environment."""
    (port,) = free_ports(1)
    command, flag = _container(objects)["command"]
    (script,) = _container(objects)["args"]
    for old, new in (("port 6379", f"port {port}"), ("dir /data", f"dir {data}")):
        assert script.count(old) == 1
        script = script.replace(old, new)
    folder = Path(find_executable(os.environ)).parent
    process = subprocess.Popen(
        [shutil.which(command) or command, flag, script],
        stdout=subprocess.DEVNULL,
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "REDISCLI_AUTH": PASSWORD,
            "MEMORY_LIMIT": str(MEMORY_LIMIT),
        },
    )
    client = redis.Redis(port=port, password=PASSWORD, decode_responses=True)
    try:
        _wait_for_port(client, process)
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(timeout=30)


def _wait_for_port(client: "redis.Redis", process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError as error:
            refused = isinstance(error, redis.AuthenticationError)
            if refused or process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _pod(objects: list[Object]) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
    return spec


def _container(objects: list[Object]) -> dict[str, Any]:
    (container,) = _pod(objects)["containers"]
    found: dict[str, Any] = container
    return found


def _secret_of(objects: list[Object]) -> Any:
    env = {item["name"]: item["valueFrom"] for item in _container(objects)["env"]}
    return env["REDISCLI_AUTH"]["secretKeyRef"]
