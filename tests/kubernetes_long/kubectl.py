"""kubectl, as objects: what is there, what comes to be within a limit, and what was done.

The kubeconfig is the one in KUBECONFIG. Limits are generous: a test fails for what never happens,
not for how long a busy machine takes.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

from tests.helm import helm

Object = dict[str, Any]


class KubectlError(Exception):
    """What kubectl wrote to stderr."""


def kubectl(*arguments: str, stdin: str | None = None, within_s: float = 300.0) -> str:
    """Its stdout. Raises KubectlError."""
    done = subprocess.run(
        [helm.kubectl(), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
    )
    if done.returncode:
        raise KubectlError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def objects(kind: str, namespace: str = "", labels: str = "") -> list[Object]:
    """All of a kind; of all namespaces where none is given."""
    where = ("--namespace", namespace) if namespace else ("--all-namespaces",)
    chosen = ("--selector", labels) if labels else ()
    found: list[Object] = json.loads(kubectl("get", kind, *where, *chosen, "-o", "json"))["items"]
    return found


def get(kind: str, name: str, namespace: str = "") -> Object | None:
    """None where there is none."""
    where = ("--namespace", namespace) if namespace else ()
    said = kubectl("get", kind, name, *where, "-o", "json", "--ignore-not-found")
    return json.loads(said) if said.strip() else None


def apply(*wanted: Object) -> None:
    kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted})
    )


def condition(one: Object, kind: str) -> bool:
    return any(
        c["type"] == kind and c["status"] == "True"
        for c in one.get("status", {}).get("conditions") or ()
    )


def name_of(one: Object) -> str:
    return str(one["metadata"]["name"])


def is_ending(one: Object) -> bool:
    return "deletionTimestamp" in one["metadata"]


def until(what: str, truth: Callable[[], object], within_s: float = 600.0) -> float:
    """Seconds until it was true. Raises AssertionError, with what it waited for."""
    began = time.monotonic()
    while True:
        try:
            if truth():
                return time.monotonic() - began
        except KubectlError:  # the API server is asked again, as every client does
            pass
        assert time.monotonic() - began < within_s, f"after {within_s:g} s: not yet {what}"
        time.sleep(0.5)
