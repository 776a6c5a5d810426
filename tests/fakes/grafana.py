"""A Grafana as its HTTP API's documentation describes it, in memory: no Grafana can be installed
where these tests run.

https://grafana.com/docs/grafana/v11.6/developers/http_api/ folder, folder_dashboard_search,
dashboard, dashboard_versions, data_source and other (health). Roles as in
https://grafana.com/docs/grafana/v11.6/administration/roles-and-permissions/
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

TOKENS = {"glsa_viewer": "Viewer", "glsa_editor": "Editor", "glsa_admin": "Admin"}
_ROLES = ["Viewer", "Editor", "Admin"]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refused(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)


class FakeGrafana:
    def __init__(self) -> None:
        self.url = ""
        self.version = "11.6.1"
        self.versions_as_list = False
        self.folders: list[dict[str, Any]] = []
        self.saves: list[dict[str, Any]] = []
        self.sources: list[dict[str, Any]] = []
        self.between: Callable[[], None] = lambda: None
        self._made = 0

    def dashboard(self, title: str) -> dict[str, Any]:
        """As it was saved last."""
        (found,) = [s for s in self._latest() if s["dashboard"]["title"] == title]
        content: dict[str, Any] = found["dashboard"]
        return content

    def edit(self, title: str, author: str = "jo", **changes: Any) -> None:
        """What a user does in the browser."""
        content = self.dashboard(title)
        self._save({**content, **changes}, self._at(content["uid"])["folderUid"], "", author)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/health", self.health),
            web.get("/api/folders", self._for("Viewer", self.list_folders)),
            web.post("/api/folders", self._for("Editor", self.create_folder)),
            web.get("/api/search", self._for("Viewer", self.search)),
            web.post("/api/dashboards/db", self._for("Editor", self.save)),
            web.get("/api/dashboards/uid/{uid}", self._for("Viewer", self.get)),
            web.get("/api/dashboards/uid/{uid}/versions", self._for("Editor", self.list_versions)),
            web.get("/api/datasources", self._for("Admin", self.list_sources)),
            web.post("/api/datasources", self._for("Admin", self.create_source)),
            web.put("/api/datasources/uid/{uid}", self._for("Admin", self.update_source)),
        ]

    def _for(self, role: str, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if token not in TOKENS:
                return refused(401, "Invalid API key")
            if _ROLES.index(TOKENS[token]) < _ROLES.index(role):
                return refused(403, "You'll need additional permissions to perform this action")
            return await handler(request)

        return guarded

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"database": "ok", "version": self.version})

    async def list_folders(self, request: web.Request) -> web.Response:
        return web.json_response(self.folders)

    async def create_folder(self, request: web.Request) -> web.Response:
        folder = {"uid": self._new_uid(), "title": (await request.json())["title"]}
        self.folders.append(folder)
        return web.json_response(folder)

    async def search(self, request: web.Request) -> web.Response:
        hits = [
            {
                "uid": save["dashboard"]["uid"],
                "title": save["dashboard"]["title"],
                "folderUid": save["folderUid"],
                "type": "dash-db",
            }
            for save in self._latest()
            if save["folderUid"] == request.query["folderUIDs"]
        ]
        limit, page = int(request.query["limit"]), int(request.query["page"])
        return web.json_response(hits[limit * (page - 1) : limit * page])

    async def save(self, request: web.Request) -> web.Response:
        self.between()
        body = await request.json()
        dashboard, folder = body["dashboard"], body["folderUid"]
        if not dashboard.get("title"):
            return refused(400, "Dashboard title cannot be empty")
        known = self._at(dashboard["uid"]) if dashboard.get("uid") else None
        if known and known["dashboard"]["version"] != dashboard["version"]:
            return refused(412, "The dashboard has been changed by someone else")
        saved = self._save(dashboard, folder, body["message"], "sa-antefix")
        return web.json_response({"status": "success", "uid": saved["uid"]})

    async def get(self, request: web.Request) -> web.Response:
        save = self._at(request.match_info["uid"])
        return web.json_response({"dashboard": save["dashboard"], "meta": {}})

    async def list_versions(self, request: web.Request) -> web.Response:
        versions = [
            {
                "version": save["dashboard"]["version"],
                "message": save["message"],
                "createdBy": save["author"],
            }
            for save in reversed(self.saves)
            if save["dashboard"]["uid"] == request.match_info["uid"]
        ]
        wrapped = {"continueToken": "", "versions": versions}
        return web.json_response(versions if self.versions_as_list else wrapped)

    async def list_sources(self, request: web.Request) -> web.Response:
        return web.json_response(self.sources)

    async def create_source(self, request: web.Request) -> web.Response:
        self.sources.append({**await request.json(), "uid": self._new_uid(), "basicAuth": False})
        return web.json_response({"message": "Datasource added"})

    async def update_source(self, request: web.Request) -> web.Response:
        (known,) = [s for s in self.sources if s["uid"] == request.match_info["uid"]]
        known.update(await request.json())
        return web.json_response({"message": "Datasource updated"})

    def _new_uid(self) -> str:
        self._made += 1
        return f"uid-{self._made}"

    def _latest(self) -> list[dict[str, Any]]:
        return list({save["dashboard"]["uid"]: save for save in self.saves}.values())

    def _at(self, uid: str) -> dict[str, Any]:
        (found,) = [save for save in self._latest() if save["dashboard"]["uid"] == uid]
        return found

    def _save(
        self, dashboard: dict[str, Any], folder: str, message: str, author: str
    ) -> dict[str, Any]:
        uid = dashboard.get("uid") or self._new_uid()
        version = sum(save["dashboard"]["uid"] == uid for save in self.saves) + 1
        content = {**dashboard, "id": 100 + len(self.saves), "uid": uid, "version": version}
        self.saves.append(
            {"dashboard": content, "folderUid": folder, "message": message, "author": author}
        )
        return content


@contextmanager
def running_grafana() -> Iterator[FakeGrafana]:
    grafana = FakeGrafana()
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        app = web.Application()
        app.add_routes(grafana.routes())
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        grafana.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stopping.wait()
        await runner.cleanup()

    stopping = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield grafana
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10)
        loop.close()
