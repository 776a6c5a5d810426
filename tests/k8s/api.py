"""The Kubernetes API over HTTP, from objects in memory: no cluster can run where these tests do.

    with Api(node, pod, version="1.34") as api:
        api.client()                      a kubernetes.client.ApiClient that talks to it
        api.kubeconfig                    path of a kubeconfig, for commands and kubectl
        api.add(deployment)               as if a client had made or replaced it
        api.get("Deployment", "x", "ns")  as it is now; KeyError where there is none
        api.remove("Pod", "x", "ns")
    api.write_log("x", "ns", "a line")   as if the pod's container had written it
        api.forbid("list", "nodes")       403 from now on; also one namespace or name only
        api.away = True                   connections end without an answer, until it is False
        api.before_write = something      is called before each write, to make another one first
        api.calls                         the requests: ("patch", "deployments/scale", "ns", "x")

It has list in pages, get, create, update, patch (merge), delete, /status, /scale and /log, which
can be followed. It has selectors of labels and fields, resource versions with their conflicts,
/version and discovery; no watch. A CustomResourceDefinition that is added brings its kind. All that
is given to it or written to it is checked against the schemas of that Kubernetes version, recorded
in kubernetes_validate. A RayService is checked against its CRD: no test passes with what no cluster
would hold.
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import kubernetes_validate
import yaml
from kubernetes.config import new_client_from_config

from tests.k8s.kinds import BUILT_IN, Kind, check_custom, kinds_of
from tests.k8s.selectors import Unsupported, matches_fields, matches_labels

Object = dict[str, Any]
Place = tuple[str, str, str]  # plural with group, namespace, name

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Refused(Exception):
    """An answer other than 2xx."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }


class Api:
    def __init__(self, *objects: Object, version: str = "1.34") -> None:
        self.version = version
        self.away = False
        self.before_write: Callable[[], None] = lambda: None
        self.calls: list[tuple[str, str, str, str]] = []
        self._objects: dict[Place, Object] = {}
        self._kinds: dict[tuple[str, str], Kind] = {k.served_at: k for k in BUILT_IN}
        self._forbidden: list[tuple[str, str, str | None, str | None]] = []
        # The lines of a pod, each with the time in nanoseconds.
        self._logs: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._written = 0
        self._is_closed = False
        self._lock = threading.RLock()
        self._folder = tempfile.TemporaryDirectory()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.kubeconfig = Path(self._folder.name) / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(self.url)))
        self.add(_namespace("default"), *objects)

    def __enter__(self) -> Self:
        serve = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        serve.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._is_closed = True
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    def client(self) -> Any:
        return new_client_from_config(str(self.kubeconfig))  # type: ignore[no-untyped-call]

    def add(self, *objects: Object) -> None:
        """Raises ValueError, kubernetes_validate.ValidationError or SchemaNotFoundError."""
        with self._lock:
            for given in objects:
                kind = self._kind_of(given)
                self._check(given, kind)
                namespace = given["metadata"].get("namespace", "default") if kind.namespaced else ""
                if namespace and ("namespaces", "", namespace) not in self._objects:
                    self.add(_namespace(namespace))
                self._put(kind, namespace, given)

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        with self._lock:
            (key,) = {k.key for k in self._kinds.values() if k.kind == kind}
            return copy.deepcopy(self._objects[key, namespace, name])

    def remove(self, kind: str, name: str, namespace: str = "") -> None:
        with self._lock:
            (key,) = {k.key for k in self._kinds.values() if k.kind == kind}
            del self._objects[key, namespace, name]

    def write_log(self, pod: str, namespace: str, line: str, ago_s: float = 0.0) -> None:
        with self._lock:
            now = time.time_ns() - int(ago_s * 1e9)
            self._logs.setdefault((namespace, pod), []).append((now, line))
        time.sleep(1e-5)  # so that another line, of any pod, has a later time

    def forbid(
        self, verb: str, resource: str, namespace: str | None = None, name: str | None = None
    ) -> None:
        self._forbidden.append((verb, resource, namespace, name))

    def answer(
        self, method: str, target: str, sent: Object | None, content: str
    ) -> Object | Iterator[str]:
        """The body of a 2xx answer; of a log, its lines. Raises Refused."""
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if method == "GET" and (found := self._discovered(parts)):
            return found
        kind, namespace, name, sub = self._route(parts)
        verb = VERBS.get(method) or ("get" if name else "list")
        resource = kind.plural + (f"/{sub}" if sub else "")
        self.calls.append((verb, resource, namespace, name))
        self._authorize(verb, resource, kind, namespace, name)
        if method != "GET":
            self.before_write()
        with self._lock:
            if verb == "list":
                return self._list(kind, namespace, query)
            if verb == "create":
                return self._create(kind, namespace, sent or {})
            place = (kind.key, namespace, name)
            if place not in self._objects:
                raise Refused(404, "NotFound", f'{kind.key} "{name}" not found')
            there = self._objects[place]
            if verb == "delete":
                del self._objects[place]
                return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
            if sub == "log":
                return self._log(namespace, name, query)
            if verb == "get":
                return _scale_of(there) if sub == "scale" else there
            return self._change(kind, there, sub, verb, sent or {}, content)

    def _log(self, namespace: str, name: str, query: dict[str, str]) -> Iterator[str]:
        """The lines of a pod's only container, each with its time."""
        assert query.pop("timestamps") == "true"
        (container,) = self._objects["pods", namespace, name]["spec"]["containers"]
        if (namespace, name) not in self._logs or query["container"] != container["name"]:
            raise Refused(400, "BadRequest", f'container in pod "{name}" is waiting to start')
        since = (
            time.time_ns() - int(query["sinceSeconds"]) * 10**9 if "sinceSeconds" in query else 0
        )
        if "sinceTime" in query:  # Kubernetes' times in queries are whole seconds
            since = int(datetime.fromisoformat(query["sinceTime"]).timestamp()) * 10**9
        lines = self._logs[namespace, name]
        first = max(0, len(lines) - int(query.get("tailLines", len(lines))))

        def told() -> Iterator[str]:
            sent = first
            while True:
                for at, text in lines[sent:]:
                    sent += 1
                    if at >= since:
                        second = datetime.fromtimestamp(at // 10**9, UTC)
                        yield f"{second:%Y-%m-%dT%H:%M:%S}.{at % 10**9:09}Z {text}"
                is_gone = self._is_closed or ("pods", namespace, name) not in self._objects
                if "follow" not in query or is_gone:
                    return
                time.sleep(0.005)

        return told()

    def _create(self, kind: Kind, namespace: str, sent: Object) -> Object:
        name = sent.get("metadata", {}).get("name", "")
        if (kind.key, namespace, name) in self._objects:
            raise Refused(409, "AlreadyExists", f'{kind.key} "{name}" already exists')
        if namespace and ("namespaces", "", namespace) not in self._objects:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        return self._checked_put(kind, namespace, sent)

    def _change(
        self, kind: Kind, there: Object, sub: str, verb: str, sent: Object, content: str
    ) -> Object:
        now = _scale_of(there) if sub == "scale" else there
        if verb == "patch":
            if content not in _MERGES or ("strategic" in content and _holds_list(sent)):
                raise Refused(415, "UnsupportedMediaType", f"not played here: {content}")
            sent = _merged(now, sent)
        version = sent["metadata"].get("resourceVersion")
        if verb == "update" and not version and kind.kind == "Lease":
            raise Refused(422, "Invalid", "metadata.resourceVersion: must be specified")
        if version and version != there["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", "the object has been modified; apply your changes anew")
        if sub == "scale":
            replicas = sent["spec"]["replicas"]
            sent = {**there, "spec": {**there["spec"], "replicas": replicas}}
        elif sub == "status":
            sent = {**there, "status": sent.get("status", {})}
        elif "status" in there:
            sent = {**sent, "status": there["status"]}
        made = self._checked_put(kind, there["metadata"].get("namespace", ""), sent)
        return _scale_of(made) if sub == "scale" else made

    def _checked_put(self, kind: Kind, namespace: str, sent: Object) -> Object:
        for field, wanted in (("apiVersion", kind.api_version), ("kind", kind.kind)):
            if sent.setdefault(field, wanted) != wanted:
                raise Refused(400, "BadRequest", f"{field} is not {wanted}")
        try:
            self._check(sent, kind)
        except (kubernetes_validate.ValidationError, ValueError) as error:
            raise Refused(422, "Invalid", str(error)) from None
        return self._put(kind, namespace, sent)

    def _put(self, kind: Kind, namespace: str, given: Object) -> Object:
        stored = copy.deepcopy(given)
        metadata = stored["metadata"]
        place = (kind.key, namespace, metadata["name"])
        before = self._objects.get(place)
        self._written += 1
        metadata["resourceVersion"] = str(self._written)
        if namespace:
            metadata["namespace"] = namespace
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
        changed = before is None or before.get("spec") != stored.get("spec")
        metadata.setdefault("generation", 0)
        metadata["generation"] += changed
        self._objects[place] = stored
        if kind.kind == "CustomResourceDefinition":
            self._kinds |= {made.served_at: made for made in kinds_of(stored)}
        return stored

    def _check(self, given: Object, kind: Kind) -> None:
        if kind.built_in:
            _check_built_in(json.dumps(given), self.version)
        else:
            check_custom(given)

    def _kind_of(self, given: Object) -> Kind:
        for kind in self._kinds.values():
            if (kind.api_version, kind.kind) == (given["apiVersion"], given["kind"]):
                return kind
        raise ValueError(
            f"{given['apiVersion']} {given['kind']}: add its CRD, or tests/k8s/kinds.py"
        )

    def _list(self, kind: Kind, namespace: str, query: dict[str, str]) -> Object:
        found = [
            stored
            for (key, where, _), stored in sorted(self._objects.items())
            if key == kind.key and namespace in ("", where)
        ]
        try:
            found = [o for o in found if matches_labels(o, query.get("labelSelector", ""))]
            fields = query.get("fieldSelector", "")
            found = [o for o in found if matches_fields(o, fields, kind.fields)]
        except Unsupported as error:
            raise Refused(400, "BadRequest", str(error)) from None
        start = int(query.get("continue") or 0)
        limit = int(query.get("limit") or 0) or len(found)
        more = {"continue": str(start + limit)} if start + limit < len(found) else {}
        return {
            "apiVersion": kind.api_version,
            "kind": f"{kind.kind}List",
            "metadata": {"resourceVersion": str(self._written), **more},
            "items": found[start : start + limit],
        }

    def _route(self, parts: list[str]) -> tuple[Kind, str, str, str]:
        """Kind, namespace, name and subresource of a path such as apis/apps/v1/namespaces/x/..."""
        group_version, rest = (
            ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        )
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        plural, name, sub = (*rest, "", "", "")[:3]
        kind = self._kinds.get((group_version, plural))
        if kind is None or len(rest) > 3:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return kind, namespace, name, sub

    def _authorize(self, verb: str, resource: str, kind: Kind, namespace: str, name: str) -> None:
        for rule_verb, rule_resource, where, which in self._forbidden:
            if (rule_verb, rule_resource) == (verb, resource) and (
                where in (None, namespace) and which in (None, name)
            ):
                scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
                raise Refused(
                    403,
                    "Forbidden",
                    f'{kind.key} is forbidden: User "tester" cannot {verb} resource "{resource}" '
                    f'in API group "{kind.group}" {scope}',
                )

    def _discovered(self, parts: list[str]) -> Object | None:
        if parts == ["version"]:
            major, minor = self.version.split(".")[:2]
            return {
                "major": major,
                "minor": minor,
                "gitVersion": f"v{major}.{minor}.0",
            } | dict.fromkeys(
                ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"), ""
            )
        versions = sorted({kind.api_version for kind in self._kinds.values()})
        if parts == ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        groups = sorted({v.partition("/")[0] for v in versions if "/" in v})
        listed = [_group(g, [v for v in versions if v.startswith(f"{g}/")]) for g in groups]
        if parts == ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        if parts[0] == "apis" and len(parts) == 2 and parts[1] in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **listed[groups.index(parts[1])]}
        asked = "/".join(parts[1:])
        if asked not in versions:
            return None
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": asked,
            "resources": [k.discovered() for k in self._kinds.values() if k.api_version == asked],
        }


_MERGES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


@functools.cache
def _check_built_in(given: str, version: str) -> None:
    kubernetes_validate.validate(json.loads(given), version, strict=True)


def _handler_of(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # headers and body are two writes, and the second would wait for an acknowledgement
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = json.loads(self.rfile.read(length)) if length else None
            if api.away:
                self.close_connection = True
                return
            code = 201 if self.command == "POST" else 200
            try:
                content = self.headers.get("Content-Type", "")
                body = api.answer(self.command, self.path, sent, content)
            except Refused as refused:
                code, body = refused.code, refused.status()
            if not isinstance(body, dict):
                self._send_lines(body)
                return
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _send_lines(self, lines: Iterator[str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(ConnectionError):  # who followed has left
                for line in lines:
                    data = f"{line}\n".encode()
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def _kubeconfig(url: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "played",
        "clusters": [{"name": "played", "cluster": {"server": url}}],
        "users": [{"name": "tester", "user": {}}],
        "contexts": [{"name": "played", "context": {"cluster": "played", "user": "tester"}}],
    }


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _group(name: str, versions: list[str]) -> Object:
    served = [{"groupVersion": v, "version": v.partition("/")[2]} for v in versions]
    return {"name": name, "versions": served, "preferredVersion": served[-1]}


def _scale_of(stored: Object) -> Object:
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    metadata = {key: stored["metadata"][key] for key in kept}
    replicas = stored["spec"].get("replicas", 1)
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": metadata,
        "spec": {"replicas": replicas},
        "status": {"replicas": replicas},
    }


def _merged(now: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(now, dict):
        return copy.deepcopy(patch)
    merged = {**now, **{key: _merged(now.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _holds_list(data: Any) -> bool:
    """A strategic patch merges some lists by key, which is not played."""
    return isinstance(data, list) or (
        isinstance(data, dict) and any(map(_holds_list, data.values()))
    )
