"""A cluster's API as its users have it: kubectl and Helm, with one kubeconfig.

Limits are generous: a test fails for what never comes to be, not for how busy the machine is.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.helm.helm import Object, helm, kubectl

COMMAND_S = 300.0
WITHIN_S = 600.0


class Refused(Exception):
    """What kubectl or Helm wrote to stderr."""


@dataclass(frozen=True)
class Said:
    stdout: str
    stderr: str


class Kubernetes:
    """`kubeconfig` as the variable KUBECONFIG has it, which is asked where none is given."""

    def __init__(self, kubeconfig: str = "") -> None:
        self.kubeconfig = kubeconfig

    def kubectl(self, *arguments: str, stdin: str = "", within_s: float = COMMAND_S) -> str:
        """Its stdout. Raises Refused."""
        return self._run([kubectl(), *arguments], stdin, within_s).stdout

    def helm(self, *arguments: str, program: str = "") -> Said:
        """By default, run Helm 4. Raises Refused."""
        return self._run([program or helm(), *arguments], "")

    def _run(self, command: list[str], stdin: str, within_s: float = COMMAND_S) -> Said:
        done = subprocess.run(
            command,
            input=stdin,
            env=os.environ | ({"KUBECONFIG": self.kubeconfig} if self.kubeconfig else {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )
        if done.returncode:
            raise Refused(done.stderr.strip() or done.stdout.strip())
        return Said(done.stdout, done.stderr)

    def objects(self, kinds: str, namespace: str = "", labels: str = "") -> list[Object]:
        """Return the objects of these kinds, with the owners of their fields.

        By default, return those of all namespaces.
        """
        where = ["--namespace", namespace] if namespace else ["--all-namespaces"]
        chosen = ["--selector", labels] if labels else []
        told = self.kubectl("get", kinds, *where, *chosen, "--show-managed-fields", "-o", "json")
        found: list[Object] = json.loads(told)["items"]
        return found

    def get(self, kind: str, name: str, namespace: str = "") -> Object | None:
        """None where there is none."""
        where = ("--namespace", namespace) if namespace else ()
        said = self.kubectl("get", kind, name, *where, "-o", "json", "--ignore-not-found")
        return json.loads(said) if said.strip() else None

    @functools.cached_property
    def kinds_in_namespaces(self) -> list[str]:
        """Those that can be listed, as kubectl calls them."""
        listed = ("--verbs=list", "--namespaced=true", "--output=name")
        return self.kubectl("api-resources", *listed).split()

    def apply(self, *objects: Object) -> None:
        """Server-side."""
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listed))

    def apply_text(self, manifests: str, namespace: str, manager: str) -> str:
        """As GitOps does; what kubectl warned of. Raises Refused."""
        command = [kubectl(), "apply", "--server-side", "--field-manager", manager]
        return self._run([*command, "--namespace", namespace, "-f", "-"], manifests).stderr

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """A new one in which no pod can be made, so that nothing in it depends on the nodes."""
        name = f"antefix-test-{secrets.token_hex(4)}"
        quota = {
            "metadata": {"name": "no-pods", "namespace": name},
            "spec": {"hard": {"pods": "0"}},
        }
        self.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
            {"apiVersion": "v1", "kind": "ResourceQuota", **quota},
        )
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")
            until(f"no Ray cluster is left in {name}", lambda: not self.let_go(name), every_s=2)

    def let_go(self, namespace: str) -> list[Object]:
        """Release the Ray clusters that end and wait for a Job, which gets no pod.

        Return all Ray clusters of the namespace.
        """
        clusters = self.objects("rayclusters", namespace)
        for one in clusters:
            if is_ending(one):
                patch = ("--type", "merge", "--patch", '{"metadata": {"finalizers": null}}')
                name = ("--namespace", namespace, name_of(one))
                with suppress(Refused):  # it has just gone
                    self.kubectl("patch", "raycluster", *name, *patch)
        return clusters


def condition(one: Object, kind: str) -> bool:
    return any(
        c["type"] == kind and c["status"] == "True"
        for c in one.get("status", {}).get("conditions") or ()
    )


def name_of(one: Object) -> str:
    return str(one["metadata"]["name"])


def is_ending(one: Object) -> bool:
    return "deletionTimestamp" in one["metadata"]


def until(
    what: str, truth: Callable[[], object], within_s: float = WITHIN_S, every_s: float = 0.5
) -> float:
    """Seconds until it was true. Raises AssertionError, with what it waited for."""
    began = time.monotonic()
    while True:
        refused = ""
        try:
            if truth():
                return time.monotonic() - began
        except Refused as error:  # the API server is asked again, as every client does
            refused = f" ({error})"
        assert time.monotonic() - began < within_s, f"after {within_s:g} s: not yet {what}{refused}"
        time.sleep(every_s)


def kubeconfig_with_token(of: str, token: str, namespace: str, target: Path) -> Path:
    """A copy of kubeconfig `of`, that of one cluster, for a holder of the token."""
    told = subprocess.run(
        [kubectl(), "config", "view", "--raw", "--flatten", "--minify", "-o", "json"],
        env=os.environ | {"KUBECONFIG": of},
        capture_output=True,
        text=True,
        check=True,
    )
    config = json.loads(told.stdout)
    config["users"] = [{"name": "holder", "user": {"token": token}}]
    config["contexts"][0]["context"] |= {"user": "holder", "namespace": namespace}
    target.write_text(json.dumps(config))
    return target
