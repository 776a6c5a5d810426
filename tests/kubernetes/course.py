"""What becomes of a release of one values file from install to uninstall, while no pod is made.

Each step goes on from what the one before left, so all of them are taken once and the tests read
what was seen.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.helm.helm import CHART, Object
from tests.kubernetes.api import Kubernetes, Refused, until

RELEASE = "afx"
OPERATOR = "kuberay-operator"  # as an owner of fields
CHANGED = ("--values", str(Path(__file__).with_name("changed-values.yaml")))
# The images are not published, so values files name none.
IMAGES = ("--set", "image.registry=registry.acme.internal")
# Without a look at the cluster the chart would make other Secrets each time.
GENERATES_NOTHING = (
    *("--set", "auth.generate=false", "--set", "auth.existingSecret=own-auth"),
    *("--set", "redis.existingSecret=own-redis"),
)
# In every namespace, or of any that watches it.
NOT_OURS = ("configmap/kube-root-ca.crt", "serviceaccount/default", "resourcequota/no-pods")
NOT_ASKED = ("events", "events.events.k8s.io", "persistentvolumeclaims")


@dataclass
class Course:
    """`said`: of each step what Helm or kubectl wrote to stderr, also where it failed."""

    said: dict[str, str] = field(default_factory=dict)
    taken_over: list[str] = field(default_factory=list)
    secrets: list[Object] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def step(self, name: str, take: Callable[[], str]) -> None:
        try:
            self.said[name] = take()
        except (Refused, AssertionError, subprocess.TimeoutExpired) as error:
            self.said[name] = f"failed: {error}"


def by_helm(kubernetes: Kubernetes, values: Path, program: str = "") -> Course:
    course = Course()
    with kubernetes.namespace() as namespace:
        in_it = ("--namespace", namespace)

        def helm(*arguments: str) -> str:
            return kubernetes.helm(*arguments, *in_it, program=program).stderr

        chart = (RELEASE, str(CHART), "--values", str(values), *IMAGES)
        course.step("install", lambda: helm("install", *chart))
        settle(kubernetes, namespace)
        course.taken_over = taken_over(kubernetes, namespace)
        course.step("upgrade", lambda: helm("upgrade", *chart, *CHANGED))
        course.step("rollback", lambda: helm("rollback", RELEASE, "1"))
        course.step("uninstall", lambda: helm("uninstall", RELEASE))
        course.left = left_in(kubernetes, namespace)
    return course


def by_gitops(kubernetes: Kubernetes, values: Path) -> Course:
    """Rendered without a look at the cluster and applied, and that again."""
    course = Course()
    with kubernetes.namespace() as namespace:
        chart = ("template", RELEASE, str(CHART), "--values", str(values), *IMAGES)

        own = ("--namespace", namespace, "--no-hooks", *GENERATES_NOTHING)

        def sync() -> str:
            rendered = kubernetes.helm(*chart, *own).stdout
            return kubernetes.apply_text(rendered, namespace, "argocd-controller")

        for number in ("first", "second"):
            course.step(number, sync)
            settle(kubernetes, namespace)
            found = kubernetes.objects("secrets", namespace)
            # KubeRay makes the token of a Ray cluster, and owns it
            course.secrets += [one for one in found if "ownerReferences" not in one["metadata"]]
    return course


def settle(kubernetes: Kubernetes, namespace: str) -> None:
    """Wait until KubeRay has written to the RayService what it writes, once, before all other
    steps."""

    def made() -> bool:
        return bool(kubernetes.objects("rayclusters", namespace))

    with contextlib.suppress(Refused, AssertionError):  # the step before says why
        until(f"KubeRay makes the cluster of {namespace}", made)


def taken_over(kubernetes: Kubernetes, namespace: str) -> list[str]:
    """The fields that the chart renders and KubeRay owns, by which the next apply fails."""
    try:
        text = kubernetes.helm("get", "manifest", RELEASE, "--namespace", namespace).stdout
    except Refused as error:
        return [str(error)]
    rendered = [one for one in yaml.safe_load_all(text) if one and one["kind"] == "RayService"]
    (live,) = kubernetes.objects("rayservices", namespace)
    return [
        ".".join(path)
        for owner in live["metadata"]["managedFields"]
        if owner["manager"] == OPERATOR and "subresource" not in owner
        for path in leaves(owner["fieldsV1"].get("f:spec", {}))
        if is_there(rendered[0]["spec"], path)
    ]


def leaves(fields: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    below = [name for name in fields if name != "."]
    if not below:
        yield path
    for name in below:
        yield from leaves(fields[name], (*path, name.removeprefix("f:")))


def is_there(value: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


def left_in(kubernetes: Kubernetes, namespace: str) -> list[str]:
    """What stays when all that goes has gone, claims left out: those are kept, as the docs say."""
    of_all = ",".join(kind for kind in kubernetes.kinds_in_namespaces if kind not in NOT_ASKED)
    left: list[str] = []

    def gone() -> bool:
        told = kubernetes.kubectl("get", of_all, "--namespace", namespace, "--output=json")
        found: list[Object] = json.loads(told)["items"]
        left[:] = [
            name
            for one in found
            if (name := f"{one['kind'].lower()}/{one['metadata']['name']}") not in NOT_OURS
        ]
        classes = kubernetes.kubectl("get", "priorityclasses", "--output=name").split()
        left.extend(name for name in classes if namespace in name)
        kubernetes.let_go(namespace)
        return not left

    with contextlib.suppress(AssertionError):
        until(f"nothing is left in {namespace}", gone, every_s=3)
    return left
