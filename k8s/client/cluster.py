"""A read-only client of the Kubernetes API, with the user's kubeconfig.

Objects are plain, as in YAML. `Denied` reports a single forbidden question. Every other failure
ends the command, as a Problem.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import urllib3
from kubernetes import client, config

from common.errors import Problem

Object = dict[str, Any]

# per response: lists are read in pages, because thousands of pods would take longer
_TIMEOUT_S = 15.0
_PAGE = 500
# the path of an API group
_CORE = "/api/v1"


class Denied(Problem):
    """These credentials may not perform `verb` on `resource`, `where`."""

    def __init__(self, verb: str, resource: str, where: str) -> None:
        self.verb, self.resource, self.where = verb, resource, where
        self.what = f"may not {verb} {resource} {where}"
        super().__init__(
            f"these credentials {self.what}",
            f"ask an administrator for permission to {verb} {resource}",
        )


class Cluster:
    """A cluster. `namespace` is that of the context."""

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Connect. Raises Problem."""
        configuration = client.Configuration()
        self.namespace = _configured(configuration, kubeconfig, context)
        # an unreachable cluster is reported at once, not after retries
        configuration.retries = False
        self._host = configuration.host
        self._api = client.ApiClient(configuration)

    def version(self) -> Object:
        return self._asked("/version") or {}

    def serves(self, api: str) -> bool:
        """Return whether the cluster serves a resource, written as group/version/plural."""
        group_version, _, plural = api.rpartition("/")
        served = self._asked(f"/apis/{group_version}") or {}
        return any(resource["name"] == plural for resource in served.get("resources", ()))

    def has_group(self, group: str) -> bool:
        return self._asked(f"/apis/{group}") is not None

    def list(
        self, plural: str, group: str = "", namespace: str = "", labels: str = "", fields: str = ""
    ) -> list[Object]:
        """List objects, of all namespaces if none is given; `group` as in apps/v1. Raises
        Denied."""
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(_PAGE)}
        items: list[Object] = []
        while True:
            asked = {key: value for key, value in query.items() if value}
            question = ("list", plural, namespace)
            page = self._asked(_path(plural, group, namespace), asked, question) or {}
            items += page.get("items", ())
            query["continue"] = page.get("metadata", {}).get("continue", "")
            if not query["continue"]:
                return items

    def get(self, plural: str, name: str, group: str = "", namespace: str = "") -> Object | None:
        """Return an object, or None if it does not exist. Raises Denied."""
        path = f"{_path(plural, group, namespace)}/{name}"
        return self._asked(path, {}, ("get", plural, namespace))

    def log(self, pod: str, container: str, namespace: str, **options: str) -> Iterator[str]:
        """Yield the lines of a container's log, as they arrive if `options` has `follow`.

        `options` are those of the API, such as tailLines. A container that has not started, or is
        gone, yields nothing. Raises Denied.
        """
        path = f"{_path('pods', '', namespace)}/{pod}/log"
        # a followed container may be silent for hours
        read_s = None if "follow" in options else _TIMEOUT_S
        try:
            answer = self._answer(path, {"container": container, **options}, (_TIMEOUT_S, read_s))
            if answer.status == 200:
                with answer.response as lines:
                    yield from (line.decode(errors="replace").rstrip("\n") for line in lines)
            elif answer.status not in (400, 404):
                self._refused(answer.status, answer.read(), "get", "pods/log", namespace)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._silent(error) from None

    def _asked(
        self,
        path: str,
        query: dict[str, str] | None = None,
        question: tuple[str, str, str] = ("get", "the API", ""),
    ) -> Object | None:
        try:
            answer = self._answer(path, query or {}, _TIMEOUT_S)
            body = answer.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._silent(error) from None
        if answer.status == 404:
            return None
        if answer.status != 200:
            self._refused(answer.status, body, *question)
        found: Object = json.loads(body)
        return found

    def _answer(
        self, path: str, query: dict[str, str], timeout: float | tuple[float, float | None]
    ) -> Any:
        request = self._api.param_serialize(
            "GET",
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json, */*"},
            auth_settings=["BearerToken"],
        )
        return self._api.call_api(*request, _request_timeout=timeout)

    def _silent(self, error: Exception) -> Problem:
        return Problem(
            f"the cluster at {self._host} does not answer: {_reason(error)}",
            "check that kubectl get nodes works, or choose another cluster with --context or "
            "--kubeconfig",
        )

    def _refused(
        self, status: int, body: bytes, verb: str, resource: str, namespace: str
    ) -> NoReturn:
        if status == 403:
            where = f"in namespace {namespace}" if namespace else "in the whole cluster"
            raise Denied(verb, resource, where)
        if status == 401:
            raise Problem(
                f"the cluster at {self._host} rejects these credentials",
                "log in again and check that kubectl get pods works",
            )
        try:
            said = json.loads(body)["message"]
        except (ValueError, KeyError, TypeError):
            said = f"status {status}"
        raise Problem(
            f"the cluster at {self._host} answers {verb} {resource} with: {said}",
            "check that kubectl get nodes works",
        )


def _configured(configuration: Any, kubeconfig: str | None, context: str | None) -> str:
    """Return the namespace. In a pod without a kubeconfig, the service account is used."""
    # the library reads the variable when it is imported
    kubeconfig = kubeconfig or os.environ.get("KUBECONFIG")
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            kubeconfig, context, client_configuration=configuration, persist_config=False
        )
        contexts, active = config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        if kubeconfig is None and context is None and _is_in_cluster(configuration):
            return "default"
        raise Problem(
            f"no cluster is configured: {str(error).strip().rstrip('.')}",
            "name a kubeconfig with --kubeconfig or KUBECONFIG, and one of its contexts with "
            "--context",
        ) from None
    chosen = next((one for one in contexts if one["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")


def _is_in_cluster(configuration: Any) -> bool:
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        return False
    return True


def _path(plural: str, group: str, namespace: str) -> str:
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{f'/apis/{group}' if group else _CORE}{within}/{plural}"


def _reason(error: BaseException) -> str:
    """Return urllib3's message, without the name of a Python object in front."""
    return str(error).rpartition(">: ")[2] or str(error)
