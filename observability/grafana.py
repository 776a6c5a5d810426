"""The dashboards in a Grafana: their state, the changes of a push, and the push.

A dashboard is identified by title and folder, never by a UID. Each push stores the digest of its
content as the message of the dashboard's version. If the latest version has another message, the
dashboard was edited in Grafana, and a push keeps it. A save names the version that it replaces, so
an edit in the meantime makes it fail. Failures raise `Problem`. HTTP API:
https://grafana.com/docs/grafana/v11.6/developers/http_api/
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import requests
from grafana_client.api import GrafanaApi
from grafana_client.client import GrafanaException

from common.errors import Problem
from observability import GENERATED

SHIPPED: Final = GENERATED / "dashboards"
DATASOURCE: Final = "Antefix"
_OLDEST = 11
_TIMEOUT_S = 10
_PAGE = 1000
_MESSAGE = "antefix push {digest}"
_PUSHED = re.compile(r"antefix push (?P<digest>[0-9a-f]{16})")
_OF_THIS_GRAFANA = ("id", "uid", "version")

Dashboard = Mapping[str, Any]


class PushState(StrEnum):
    """The effect of a push on a dashboard."""

    MISSING = "missing"
    OUTDATED = "outdated"
    SAME = "same"
    EDITED = "edited"


@dataclass(frozen=True)
class FoundDashboard:
    """A dashboard in Grafana, and its origin."""

    uid: str
    content: Dashboard
    version: int
    message: str
    author: str


@dataclass(frozen=True)
class Compared:
    """A dashboard of Antefix and its state in Grafana."""

    title: str
    ours: Dashboard
    theirs: FoundDashboard | None

    @property
    def state(self) -> PushState:
        if self.theirs is None:
            return PushState.MISSING
        if normalised(self.theirs.content) == normalised(self.ours):
            return PushState.SAME
        pushed = _PUSHED.fullmatch(self.theirs.message)
        if pushed is None:
            return PushState.EDITED
        # Grafana may store a dashboard in another form: newer versions migrate the schema.
        return PushState.SAME if pushed["digest"] == digest(self.ours) else PushState.OUTDATED

    def diff(self) -> str:
        """Return the changes from Grafana's to Antefix's, as a unified diff of JSON; empty if there
        are none."""
        if self.state is PushState.SAME:
            return ""
        theirs = as_text(self.theirs.content) if self.theirs else ""
        lines = difflib.unified_diff(
            theirs.splitlines(keepends=True),
            as_text(self.ours).splitlines(keepends=True),
            f"Grafana/{self.title}",
            f"here/{self.title}",
        )
        return "".join(lines)


def normalised(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard without the data of one Grafana: its keys, and the data source chosen
    there."""
    kept = {key: value for key, value in dashboard.items() if key not in _OF_THIS_GRAFANA}
    variables = kept.get("templating", {}).get("list", [])
    kept["templating"] = {
        "list": [
            {key: value for key, value in variable.items() if key not in ("current", "options")}
            if variable.get("type") == "datasource"
            else variable
            for variable in variables
        ]
    }
    return kept


def as_text(dashboard: Dashboard) -> str:
    return json.dumps(normalised(dashboard), sort_keys=True, indent=2) + "\n"


def digest(dashboard: Dashboard) -> str:
    return hashlib.sha256(as_text(dashboard).encode()).hexdigest()[:16]


def file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") + ".json"


def read(folder: Path = SHIPPED) -> list[Dashboard]:
    """Return the dashboards of a folder, by title. Raises Problem."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            dashboard = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Problem(f"{path} cannot be read: {error}", "repair or remove it") from error
        if not isinstance(dashboard, dict) or not dashboard.get("title"):
            raise Problem(f"{path} is not a dashboard: it has no title", "remove it")
        found.append(dashboard)
    if not found:
        raise Problem(
            f"{folder} contains no dashboards", "write them: antefix slo render --output-dir DIR"
        )
    _refuse_twins([dashboard["title"] for dashboard in found], str(folder))
    return sorted(found, key=lambda dashboard: str(dashboard["title"]))


class Grafana:
    """A Grafana, over HTTP. `token`: that of a service account."""

    def __init__(self, url: str, token: str) -> None:
        parts = _address(url)
        # without the part before the @, which may be a password
        self.where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        path = parts.path.strip("/")
        self._api = GrafanaApi.from_url(
            f"{self.where}/{path}/" if path else self.where, credential=token, timeout=_TIMEOUT_S
        )

    def check(self) -> None:
        """Check that a Grafana with support for these dashboards answers."""
        with self._explained("report its version"):
            health = self._api.health.check()
        version = health.get("version", "") if isinstance(health, dict) else None
        if version is None:
            raise Problem(f"{self.where} does not answer like Grafana", "check GRAFANA_URL")
        major = version.partition(".")[0]
        # Some Grafanas do not show their version without a login.
        if major.isdecimal() and int(major) < _OLDEST:
            raise Problem(
                f"Grafana {version} at {self.where} is too old for these dashboards",
                f"upgrade it to {_OLDEST} or newer",
            )

    def folder(self, title: str) -> str | None:
        """Return the UID of the folder with that title."""
        with self._explained("list folders"):
            folders = self._api.folder.get_all_folders()
        return next((str(f["uid"]) for f in folders if f["title"] == title), None)

    def create_folder(self, title: str) -> str:
        with self._explained(f"create the folder {title}"):
            return str(self._api.folder.create_folder(title)["uid"])

    def titles(self, folder: str) -> dict[str, str]:
        """Return UIDs of a folder's dashboards, by title. Raises Problem if two have the same
        title."""
        hits: list[dict[str, Any]] = []
        page = 1
        with self._explained("list dashboards"):
            while True:
                query = f"/search?type=dash-db&folderUIDs={folder}&limit={_PAGE}&page={page}"
                more = self._api.client.GET(query)
                hits += [hit for hit in more if hit.get("folderUid") == folder]
                if len(more) < _PAGE:
                    break
                page += 1
        _refuse_twins([hit["title"] for hit in hits], self.where)
        return {hit["title"]: hit["uid"] for hit in hits}

    def dashboard(self, title: str, uid: str) -> FoundDashboard:
        with self._explained(f"read {title}"):
            content = self._api.dashboard.get_dashboard(uid)["dashboard"]
            versions = self._api.dashboard_versions.get_dashboard_versions_by_uid(uid)
        # a list in older Grafanas, an object with a list in newer ones
        listed = versions["versions"] if isinstance(versions, dict) else versions
        latest: dict[str, Any] = max(listed, key=lambda one: int(one["version"]), default={})
        return FoundDashboard(
            uid=uid,
            content=content,
            version=content["version"],
            message=latest.get("message", ""),
            author=latest.get("createdBy", ""),
        )

    def compare(self, ours: Sequence[Dashboard], folder: str | None) -> list[Compared]:
        """Compare dashboards. `folder`: None if Grafana does not have it yet."""
        uids = self.titles(folder) if folder is not None else {}
        theirs = {
            board["title"]: self.dashboard(board["title"], uids[board["title"]])
            for board in ours
            if board["title"] in uids
        }
        return [Compared(board["title"], board, theirs.get(board["title"])) for board in ours]

    def save(self, compared: Compared, folder: str) -> None:
        """Replace Grafana's dashboard, which keeps its UID."""
        known = compared.theirs
        body = {
            "dashboard": {
                **normalised(compared.ours),
                "id": None,
                "uid": known.uid if known else None,
                **({"version": known.version} if known else {}),
            },
            "folderUid": folder,
            "message": _MESSAGE.format(digest=digest(compared.ours)),
            "overwrite": False,
        }
        with self._explained(f"save {compared.title}"):
            self._api.dashboard.update_dashboard(body)

    def point_datasource(self, url: str, dry_run: bool = False) -> bool:
        """Point the data source Antefix at the Prometheus at `url`. Return whether that changed
        it."""
        wanted = {"name": DATASOURCE, "type": "prometheus", "url": url, "access": "proxy"}
        with self._explained("read data sources", "Admin"):
            sources = self._api.datasource.list_datasources()
        known = next((source for source in sources if source["name"] == DATASOURCE), None)
        if known is not None and wanted.items() <= known.items():
            return False
        if dry_run:
            return True
        with self._explained("save a data source", "Admin"):
            if known is None:
                self._api.datasource.create_datasource(wanted)
            else:
                self._api.datasource.update_datasource_by_uid(known["uid"], {**known, **wanted})
        return True

    @contextmanager
    def _explained(self, doing: str, role: str = "Editor") -> Iterator[None]:
        try:
            yield
        except GrafanaException as error:
            raise self._of_status(error.status_code, doing, role, error.message) from error
        except requests.ConnectionError as error:
            raise Problem(
                f"Grafana does not answer at {self.where}",
                "check GRAFANA_URL, and that Grafana runs",
            ) from error
        except requests.Timeout as error:
            raise Problem(
                f"Grafana at {self.where} took longer than {_TIMEOUT_S} s to {doing}", "try again"
            ) from error
        except (requests.RequestException, KeyError, TypeError, ValueError) as error:
            raise Problem(
                f"{self.where} does not answer like Grafana, when asked to {doing}",
                "check GRAFANA_URL",
            ) from error

    def _of_status(self, status: int, doing: str, role: str, said: str) -> Problem:
        if status == 401:
            return Problem(
                f"Grafana at {self.where} rejects the token",
                "set GRAFANA_TOKEN to the token of an enabled service account",
            )
        if status == 403:
            return Problem(
                f"the token may not {doing}", f"give its service account the role {role}"
            )
        if status == 412:
            return Problem(
                f"Grafana did not {doing}: it was saved elsewhere in the meantime", "try again"
            )
        return Problem(f"Grafana did not {doing}: {said}", "see Grafana's log")


def _address(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # an invalid port
    raise Problem("GRAFANA_URL is not a URL", "set it to one such as https://grafana.example.com")


def _refuse_twins(titles: Sequence[str], where: str) -> None:
    files = [file_name(title) for title in titles]
    twins = sorted({title for title in titles if files.count(file_name(title)) > 1})
    if twins:
        raise Problem(
            f"several dashboards in {where} are called {twins[0]}", "rename or remove all but one"
        )
