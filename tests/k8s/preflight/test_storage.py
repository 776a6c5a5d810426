"""What preflight finds of volumes, and of room for weights."""

from __future__ import annotations

import pytest

from tests.helm.helm import merged
from tests.k8s.asking import (
    EIGHT,
    READY,
    finding_titled,
    llama,
    needs,
    preflight_findings,
    warnings_and_problems,
)
from tests.k8s.objects import Object, named, node, storage_class

PVC = {"models": {"storage": "pvc"}}


@pytest.mark.parametrize(
    "classes, chosen, severity, seen",
    [
        ([], "", "problem", "no default class"),
        ([storage_class("nfs")], "", "problem", "no default class"),
        ([storage_class("nfs", default=True)], "", "note", "nfs (nfs.csi.k8s.io) must support"),
        ([storage_class("nfs")], "efs", "problem", "efs does not exist; the cluster has nfs"),
    ],
    ids=["none", "no default", "default", "another"],
)
def test_a_claim_needs_a_class(
    classes: list[Object], chosen: str, severity: str, seen: str
) -> None:
    values = merged(PVC, {"models": {"pvc": {"storageClass": chosen}}})
    finding = finding_titled(
        preflight_findings(*READY, EIGHT, *classes, values=values), "storage class"
    )
    assert finding.severity == severity
    assert seen in finding.seen


SHARED = merged(PVC, {"models": {"pvc": {"storageClass": "files"}}})


@pytest.mark.parametrize(
    "policy, parameters, severity",
    [
        ("File", {}, "ok"),
        ("None", {}, "warning"),
        ("ReadWriteOnceWithFSType", {}, "warning"),
        ("ReadWriteOnceWithFSType", {"uid": "1000", "gid": "1000"}, "ok"),
    ],
    ids=["gives it", "never", "not a shared one", "makes it so"],
)
def test_a_csi_driver_that_ignores_fsgroup_is_reported(
    policy: str, parameters: dict[str, str], severity: str
) -> None:
    driver = named("storage.k8s.io/v1", "CSIDriver", "files.csi", spec={"fsGroupPolicy": policy})
    classes = storage_class("files", "files.csi", parameters=parameters)
    found = warnings_and_problems(preflight_findings(*READY, EIGHT, driver, classes, values=SHARED))
    assert ("owner of the volume" in found) == (severity == "warning")


def test_missing_permission_to_list_csi_drivers_is_a_warning() -> None:
    found = preflight_findings(
        *READY, EIGHT, storage_class("files"), values=SHARED, forbidden=("list", "csidrivers")
    )
    assert finding_titled(found, "may not list csidrivers").severity == "warning"


ONE_NODE = merged(
    PVC,
    {"models": {"pvc": {"storageClass": "disk", "accessModes": ["ReadWriteOnce"]}}},
)
DISK = storage_class("disk", "ebs.csi.aws.com")


def test_engines_on_several_nodes_cannot_share_a_volume_of_one() -> None:
    nodes = [node("a100-1", 8), node("a100-2", 8)]
    split = {"llama": llama(replicas=3, engine_args={"tensor-parallel-size": 4})}
    finding = finding_titled(
        preflight_findings(*READY, *nodes, DISK, pools=split, values=ONE_NODE), "models on one node"
    )
    assert finding.severity == "problem"
    assert finding.seen.startswith("engines need a100-1, a100-2")


def test_engines_that_may_be_on_several_nodes_should_be_pinned_to_one() -> None:
    nodes = [node("a100-1", 8), node("a100-2", 8)]
    found = preflight_findings(*READY, *nodes, DISK, values=ONE_NODE)
    assert finding_titled(found, "models on one node").severity == "warning"
    pinned = {"enginePods": {"nodeSelector": {"kubernetes.io/hostname": "a100-1"}}}
    found = preflight_findings(*READY, *nodes, DISK, values=merged(ONE_NODE, pinned))
    assert "models on one node" not in warnings_and_problems(found)


@pytest.mark.parametrize("disk, severity", [("100Gi", "problem"), ("1Ti", "ok")])
def test_weights_that_each_pod_downloads_need_disk_space(disk: str, severity: str) -> None:
    gpus = node("a100-1", 8)
    gpus["status"]["allocatable"]["ephemeral-storage"] = disk
    large = {"llama": llama(model="meta-llama/Llama-3.1-70B-Instruct")}
    found = preflight_findings(*READY, gpus, pools=large)
    assert finding_titled(found, "models").severity == "note"
    assert ("disk for llama" in warnings_and_problems(found)) == (severity == "problem")
    if severity == "problem":
        assert warnings_and_problems(found)["disk for llama"] == (
            "each pod downloads 131 GiB of weights to its node's disk, but the nodes that match "
            "have at most 100 GiB"
        )


@pytest.mark.parametrize("model", ["embedded", "/models/mine", "s3://models/mine"])
def test_models_outside_the_hub_are_not_downloaded(model: str) -> None:
    pools = {"llama": llama(model=model, served_model_name="llama", resources={"gpus": 0})}
    assert needs(pools).downloads == {}


PLAIN = {"llama": llama(model="meta-llama/Llama-3.1-8B-Instruct", env={"HF_TOKEN": "x"})}
DRAFT = {
    "method": "draft_model",
    "model": "meta-llama/Llama-3.2-1B-Instruct",
    "num_speculative_tokens": 4,
}


def claim_of(size: str, **models: object) -> Object:
    pvc = {"size": size, "storageClass": "disk"}
    return {"models": {"storage": "pvc", "download": {"enabled": True}, "pvc": pvc, **models}}


@pytest.mark.parametrize(
    "provisioner, size, severity, seen",
    [
        ("ebs.csi.aws.com", "10Gi", "problem", "10 GiB for 15.0 GiB of weights; the download"),
        ("ebs.csi.aws.com", "20Gi", "ok", "20 GiB for 15.0 GiB of weights"),
        # heeds no size
        ("efs.csi.aws.com", "1Gi", "ok", "1 GiB for 15.0 GiB of weights"),
    ],
)
def test_a_claim_must_hold_the_weights(
    provisioner: str, size: str, severity: str, seen: str
) -> None:
    found = preflight_findings(
        *READY, EIGHT, storage_class("disk", provisioner), pools=PLAIN, values=claim_of(size)
    )
    finding = finding_titled(found, "models.pvc")
    assert finding.severity == severity
    assert finding.seen.startswith(seen)
    assert finding.remedy == ("set models.pvc.size to 17Gi or more" if severity != "ok" else "")


def test_a_claim_holds_drafts_too_and_each_model_once() -> None:
    drafting = {"speculative_config": DRAFT}
    one = llama(model="meta-llama/Llama-3.1-8B-Instruct", served_model_name="a")
    two = {**one, "served_model_name": "b", "engine_args": drafting}
    three = llama(model="org/model", served_model_name="c")
    pools = {"a": one, "b": two, "c": three}
    needed = needs(pools, claim_of("17Gi"))
    assert [model.name for model in needed.hub_models["b"]] == [one["model"], DRAFT["model"]]
    finding = finding_titled(
        preflight_findings(*READY, EIGHT, DISK, pools=pools, values=claim_of("17Gi")), "models.pvc"
    )
    assert finding.severity == "problem"
    assert finding.seen.startswith("17 GiB for 17.3 GiB of weights, org/model not counted")


def test_weights_that_engines_stream_need_no_volume() -> None:
    pools = {"llama": llama(model="s3://bucket/model")}
    found = preflight_findings(*READY, EIGHT, DISK, pools=pools, values=claim_of("1Gi"))
    assert "models.pvc" not in [one.title for one in found]
