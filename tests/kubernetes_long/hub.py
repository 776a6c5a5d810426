"""A hub of models, as Hugging Face's, that has one model under all names in argv, and no other.

    python hub.py NAME,NAME... PORT [FOLDER]

The model is the embedded one unless a folder is given. It runs in a pod of the CPU image. What a
client requests of a hub is in huggingface_hub, hf_api.py and file_download.py: the list of a
repository's files, then each of them by its commit.
"""

import hashlib
import http.server
import json
import re
import sys
from pathlib import Path

NAMES, PORT = "|".join(map(re.escape, sys.argv[1].split(","))), int(sys.argv[2])
COMMIT = hashlib.sha1(b"the only model").hexdigest()
FOLDERS = map(Path, sys.argv[3:] or ["/opt/models"])
FOLDER = next(file.parent for folder in FOLDERS for file in folder.rglob("*.safetensors"))
FILES = sorted(file.name for file in FOLDER.iterdir() if file.is_file())


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        file = FOLDER / path.rpartition("/")[2]
        if re.match(f"/api/models/({NAMES})/tree/", path):
            tree = [{"type": "file", "path": f, "size": (FOLDER / f).stat().st_size} for f in FILES]
            self._answer(json.dumps([entry | {"oid": COMMIT} for entry in tree]).encode())
        elif found := re.match(f"/api/models/({NAMES})", path):
            siblings = [{"rfilename": f} for f in FILES]
            model = {"id": found[1], "sha": COMMIT, "private": False, "siblings": siblings}
            self._answer(json.dumps(model).encode())
        elif re.match(f"/({NAMES})/resolve/", path) and file.name in FILES:
            self._answer(file.read_bytes())
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


http.server.ThreadingHTTPServer(("", PORT), Hub).serve_forever()
