"""Where weights are kept, and that they are there before engines start."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deployments.engine.vllm.patches.compile_cache import FOLDER
from deployments.models.hub_snapshots import whole_snapshot
from tests.helm.fleets import SMALL, values
from tests.helm.helm import HelmError, Object, all_of_kind, of_kind, render, template
from tests.some import some

POOLS = {
    "large": {
        "model": "meta/Large",
        "engine_args": {"revision": "v1/a", "speculative-config": {"model": "meta/Tiny"}},
    },
    "small": {"model": "meta/Small"},
    "again": {"model": "meta/Small", "served_model_name": "b"},
    "embedded": SMALL,
    "folder": {"model": "/weights/x"},
    "bucket": {"model": "s3://weights/x", "served_model_name": "c"},
}
MODELS = ["meta/Large v1/a", "meta/Small main", "meta/Tiny main"]
DOWNLOAD = {"download": {"enabled": True}}


def rendered(pools: Any = POOLS, **models: Any) -> list[Object]:
    return render(values(pools=pools, models=models))


@pytest.fixture(scope="module")
def on_claim() -> list[Object]:
    return rendered(storage="pvc", hub={"existingSecret": "hub"}, **DOWNLOAD)


@pytest.fixture(scope="module")
def on_hosts() -> list[Object]:
    return rendered(storage="hostPath", hub={"existingSecret": "hub"}, **DOWNLOAD)


def test_without_storage_nothing_is_mounted_or_made() -> None:
    objects = rendered()
    assert not all_of_kind(objects, "Job") + all_of_kind(objects, "PersistentVolumeClaim")
    pod = engine(objects)
    assert "initContainers" not in pod
    assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == ["auth"]
    assert "HF_HOME" not in env(pod["containers"][0])


def test_an_engine_finds_the_hubs_cache_on_the_claim(on_claim: list[Object]) -> None:
    pod = engine(on_claim)
    assert {"name": "models", "mountPath": "/models"} in pod["containers"][0]["volumeMounts"]
    claim = {"claimName": "afx-antefix-models"}
    assert {"name": "models", "persistentVolumeClaim": claim} in pod["volumes"]
    assert env(pod["containers"][0])["HF_HOME"]["value"] == "/models/hub"


@pytest.mark.parametrize("storage", ["pvc", "hostPath"])
def test_engines_on_gpus_store_compiled_code_on_the_volume(storage: str) -> None:
    pod = engine(rendered(storage=storage))
    assert env(pod["containers"][0])[FOLDER]["value"] == "/models/compiled"


def test_without_a_volume_no_compiled_code_is_stored() -> None:
    assert FOLDER not in env(engine(rendered())["containers"][0])


def test_kernels_compiled_for_the_cpus_of_a_node_are_not_shared() -> None:
    objects = rendered({"chat": {**SMALL, "resources": {"gpus": 0}}}, storage="pvc")
    assert FOLDER not in env(engine(objects)["containers"][0])


def test_only_engines_store_compiled_code(on_claim: list[Object]) -> None:
    cluster = of_kind(on_claim, "RayService")["spec"]["rayClusterConfig"]
    (gateway,) = [g for g in cluster["workerGroupSpecs"] if g["groupName"] == "gateway"]
    for group in (cluster["headGroupSpec"], gateway):
        container = group["template"]["spec"]["containers"][0]
        assert FOLDER not in env(container)


def test_the_charts_claim_is_kept_after_an_uninstall(on_claim: list[Object]) -> None:
    claim = of_kind(on_claim, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "200Gi"


def test_an_existing_claim_is_used_and_none_is_made() -> None:
    objects = rendered(storage="pvc", pvc={"existingClaim": "mine"}, **DOWNLOAD)
    assert not all_of_kind(objects, "PersistentVolumeClaim")
    for pod in (engine(objects), job(objects)["spec"]["template"]["spec"]):
        claim = {"claimName": "mine"}
        assert {"name": "models", "persistentVolumeClaim": claim} in pod["volumes"]


def test_a_host_path_must_exist(on_hosts: list[Object]) -> None:
    folder = {"path": "/var/lib/antefix/models", "type": "Directory"}
    assert {"name": "models", "hostPath": folder} in engine(on_hosts)["volumes"]


def test_the_token_of_the_hub_comes_from_its_secret(on_claim: list[Object]) -> None:
    token = {"valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    pods = [engine(on_claim), job(on_claim)["spec"]["template"]["spec"]]
    for container in some([pod["containers"][0] for pod in pods]):
        assert env(container)["HF_TOKEN"] == {"name": "HF_TOKEN", **token}


def test_models_of_the_hub_are_downloaded_once_each(on_claim: list[Object]) -> None:
    listed = of_kind(on_claim, "ConfigMap", "models")["data"]["list"]
    assert listed.splitlines() == MODELS


def test_a_download_without_storage_is_refused() -> None:
    message = r"models\.storage is none: set models\.storage to pvc or hostPath"
    with pytest.raises(HelmError, match=message):
        template(values(models=DOWNLOAD))


def test_there_is_no_job_without_a_model_of_the_hub() -> None:
    objects = rendered({"chat": SMALL}, storage="pvc", **DOWNLOAD)
    assert not all_of_kind(objects, "Job")
    assert "initContainers" not in engine(objects)


def test_a_different_model_creates_a_new_job_and_keeps_the_pods(on_claim: list[Object]) -> None:
    pools = {**POOLS, "small": {"model": "meta/Other"}}
    changed = rendered(pools, storage="pvc", hub={"existingSecret": "hub"}, **DOWNLOAD)
    assert job(changed)["metadata"]["name"] != job(on_claim)["metadata"]["name"]
    assert engine(changed) == engine(on_claim)


def test_a_different_image_creates_a_new_job() -> None:
    # a Job's pod cannot be changed, so the upgrade would fail
    given = {"storage": "pvc", **DOWNLOAD}
    names = {
        job(render(values(pools=POOLS, models=given, image={"cpu": {"tag": tag}})))["metadata"][
            "name"
        ]
        for tag in ("1", "2")
    }
    assert len(names) == 2


def test_the_job_downloads_each_model_and_marks_it(on_claim: list[Object], tmp_path: Path) -> None:
    container = job(on_claim)["spec"]["template"]["spec"]["containers"][0]
    assert run(container, tmp_path) == 0
    assert downloads(tmp_path) == [
        f"download {model} --revision {revision} --exclude original/*"
        for model, revision in map(str.split, MODELS)
    ]
    assert markers(tmp_path) == {"meta--Large@v1--a", "meta--Small@main", "meta--Tiny@main"}


def test_a_download_that_fails_fails_the_job_and_is_not_marked(
    on_claim: list[Object], tmp_path: Path
) -> None:
    container = job(on_claim)["spec"]["template"]["spec"]["containers"][0]
    assert run(container, tmp_path, hf='case "$2" in *Small) exit 3;; esac') == 3
    assert markers(tmp_path) == {"meta--Large@v1--a"}


def test_a_volume_that_cannot_be_written_is_reported(
    on_claim: list[Object], tmp_path: Path
) -> None:
    container = job(on_claim)["spec"]["template"]["spec"]["containers"][0]
    (tmp_path / "hub").write_text("no folder")
    done = bash(container, tmp_path)
    assert done.returncode == 1
    assert "cannot be written by user" in done.stderr


# What the Hub's own client leaves in its cache.
_LIKE_THE_HUB = """
repository="$HF_HOME/hub/models--${2//\\//--}"
mkdir -p "$repository/snapshots/c0ffee" "$(dirname "$repository/refs/$4")"
printf c0ffee > "$repository/refs/$4"
"""


def test_an_engine_loads_the_commit_that_was_downloaded_whole(
    on_claim: list[Object], tmp_path: Path
) -> None:
    container = job(on_claim)["spec"]["template"]["spec"]["containers"][0]
    assert run(container, tmp_path, hf=_LIKE_THE_HUB) == 0
    environ = {"HF_HOME": f"{tmp_path}/hub"}
    # the next download has begun, and has no files yet
    (tmp_path / "hub/hub/models--meta--Small/refs/main").write_text("bad")
    for model, revision in some([line.split() for line in MODELS]):
        folder = whole_snapshot(model, revision, environ)
        assert folder is not None and folder.parts[-1] == "c0ffee"
        assert folder.parts[-3] == f"models--{model.replace('/', '--')}"


def test_a_commit_which_the_hubs_cache_keeps_no_ref_of_is_marked_as_itself(
    on_claim: list[Object], tmp_path: Path
) -> None:
    container = job(on_claim)["spec"]["template"]["spec"]["containers"][0]
    assert run(container, tmp_path) == 0
    assert (tmp_path / "hub/.antefix/meta--Large@v1--a").read_text() == "v1/a\n"


def test_an_engine_waits_until_the_job_has_marked_all(
    on_claim: list[Object], tmp_path: Path
) -> None:
    (waiting,) = engine(on_claim)["initContainers"]
    marks = tmp_path / "hub" / ".antefix"
    marks.mkdir(parents=True)
    for name in ("meta--Large@v1--a", "meta--Tiny@main"):
        (marks / name).touch()
    # the Job ends in the pause between two looks
    done = bash(waiting, tmp_path, sleep=f"touch '{marks}/meta--Small@main'")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "waiting for the download of meta/Small; to see its progress, run: kubectl -n llm logs "
        "--selector app.kubernetes.io/instance=afx,antefix/component=model-download"
    ]
    assert not downloads(tmp_path)


def test_on_a_host_path_each_engine_downloads_the_missing_models_of_its_node(
    on_hosts: list[Object], tmp_path: Path
) -> None:
    assert not all_of_kind(on_hosts, "Job")
    (fetching,) = engine(on_hosts)["initContainers"]
    assert run(fetching, tmp_path) == 0
    assert len(downloads(tmp_path)) == len(MODELS)
    assert run(fetching, tmp_path) == 0
    assert len(downloads(tmp_path)) == len(MODELS)


@pytest.fixture(scope="module")
def on_one_node() -> list[Object]:
    """A claim that the pods of one node may mount: local disks, EBS, Google's persistent disks."""
    return rendered(storage="pvc", pvc={"accessModes": ["ReadWriteOnce"]}, **DOWNLOAD)


def test_on_a_single_node_claim_engines_download_and_there_is_no_job(
    on_one_node: list[Object], tmp_path: Path
) -> None:
    """A Job elsewhere would bind the claim to its own node, or wait for the engines' to let go."""
    assert not all_of_kind(on_one_node, "Job")
    (fetching,) = engine(on_one_node)["initContainers"]
    assert {"name": "models", "mountPath": "/models"} in fetching["volumeMounts"]
    assert run(fetching, tmp_path) == 0
    assert len(downloads(tmp_path)) == len(MODELS)
    assert fetching["resources"]["limits"] == {"memory": "4Gi"}


def test_engines_that_share_a_volume_download_one_at_a_time(
    on_one_node: list[Object], tmp_path: Path
) -> None:
    (fetching,) = engine(on_one_node)["initContainers"]
    marks = tmp_path / "hub" / ".antefix"
    marks.mkdir(parents=True)
    holder = subprocess.Popen(
        ["flock", str(marks / "lock"), "sh", "-c", "echo locked; read _"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
    second = start(fetching, tmp_path)
    assert second.stdout is not None
    assert second.stdout.readline() == "another pod is downloading to this volume; waiting for it\n"
    for model in MODELS:
        (marks / model.replace("/", "--").replace(" ", "@")).touch()
    holder.communicate("\n")
    assert second.wait(60) == 0
    assert not downloads(tmp_path)


def test_a_failed_download_in_an_engine_pod_is_retried_and_logged(
    on_one_node: list[Object], tmp_path: Path
) -> None:
    """A pod that ended would be made again at once, and its log would be gone."""
    (fetching,) = engine(on_one_node)["initContainers"]
    mended = tmp_path / "mended"
    done = bash(fetching, tmp_path, hf=f'[ -e "{mended}" ] || exit 3', sleep=f'touch "{mended}"')
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["the download of meta/Large failed; retrying in 30 s"]
    assert len(downloads(tmp_path)) == len(MODELS)


def test_an_engine_pod_waits_for_a_writable_volume(
    on_one_node: list[Object], tmp_path: Path
) -> None:
    (fetching,) = engine(on_one_node)["initContainers"]
    (tmp_path / "hub").write_text("no folder")
    done = bash(fetching, tmp_path, sleep=f'rm "{tmp_path}/hub"')
    assert done.returncode == 0
    assert "cannot be written by user" in done.stderr and "retrying in 30 s" in done.stderr


def test_the_job_may_run_where_engines_do() -> None:
    """Where all nodes have GPUs and their taint, it had no place."""
    taint = {"key": "spot", "operator": "Exists"}
    given = {"storage": "pvc", "download": {"enabled": True, "nodeSelector": {"zone": "a"}}}
    own = {"tolerations": [taint]}
    objects = render({**values(pools=POOLS, models=given), "poolPods": {"large": own}})
    pod = job(objects)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"zone": "a"}
    assert [t["key"] for t in pod["tolerations"]] == ["nvidia.com/gpu", "spot"]


def test_the_job_leaves_its_failed_pods_with_their_logs(on_claim: list[Object]) -> None:
    pod = job(on_claim)["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_init_containers_use_the_image_of_the_pods_container(on_claim: list[Object]) -> None:
    cluster = of_kind(on_claim, "RayService")["spec"]["rayClusterConfig"]
    for group in some(cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        for container in spec.get("initContainers", []):
            assert container["image"] == spec["containers"][0]["image"]


def test_the_hub_command_accepts_these_options(tmp_path: Path) -> None:
    hf = Path(sys.executable).with_name("hf")
    done = subprocess.run(
        [hf, "download", "a/b", "--revision", "main", "--exclude", "original/*"],
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr  # 2: an option it does not know


def engine(objects: list[Object]) -> dict[str, Any]:
    """The pod of some pool."""
    groups = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    pod: dict[str, Any] = next(
        group["template"]["spec"] for group in groups if group["groupName"] != "gateway"
    )
    return pod


def job(objects: list[Object]) -> Object:
    return of_kind(objects, "Job", "models")


def env(container: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item for item in container["env"]}


def run(container: dict[str, Any], folder: Path, hf: str = "") -> int:
    return bash(container, folder, hf=hf).returncode


def bash(
    container: dict[str, Any], folder: Path, *, hf: str = "", sleep: str = "exit 1"
) -> subprocess.CompletedProcess[str]:
    process = start(container, folder, hf=hf, sleep=sleep)
    stdout, stderr = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def start(
    container: dict[str, Any], folder: Path, *, hf: str = "", sleep: str = "exit 1"
) -> subprocess.Popen[str]:
    """Run the container's script here, with programs in place of the Hub's and of time."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    _program(programs / "hf", f'{hf}\necho "$*" >> "{folder}/downloads"')
    _program(programs / "sleep", sleep)
    (folder / "list").write_text("".join(f"{line}\n" for line in MODELS))
    assert container["command"] == ["bash", "-c"]
    (script,) = container["args"]
    assert script.count("/etc/antefix/models/list") == 1
    return subprocess.Popen(
        ["bash", "-c", script.replace("/etc/antefix/models/list", f"{folder}/list")],
        env={"PATH": f"{programs}:{os.environ['PATH']}", "HF_HOME": f"{folder}/hub"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def downloads(folder: Path) -> list[str]:
    asked = folder / "downloads"
    return asked.read_text().splitlines() if asked.exists() else []


def markers(folder: Path) -> set[str]:
    return {file.name for file in (folder / "hub" / ".antefix").iterdir()}


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
