"""docs/kubernetes and the chart's notes, followed to the letter, in the order that a reader has."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helm.helm import ROOT, helm, run
from tests.helm.helm import kubectl as path_of_kubectl
from tests.kubernetes.api import until
from tests.kubernetes_long.kubectl import kubectl
from tests.kubernetes_long.release import SMALL, Release, Values, restricted_namespace
from tests.kubernetes_long.shapes import HOST
from tests.shell_blocks import shell_blocks

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(3600)]

DOCS = ROOT / "docs" / "kubernetes"
# The first upgrade takes the Secret that install.md makes. Keys come after it, since a rollback
# brings old ones back, as its page says.
ORDER = ("install", "upgrade", "troubleshoot", "keys", "uninstall")
# what the pages forward to this machine
FORWARDED = (8000, 8265)


class Reader:
    """A shell in a folder that looks like the repository's, with a reader's own values."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "helm").symlink_to(ROOT / "helm")
        folders = (str(Path(program).parent) for program in (helm(), path_of_kubectl()))
        programs = (str(ROOT / ".venv" / "bin"), *folders, os.environ["PATH"])
        self._environment = {**os.environ, "PATH": os.pathsep.join(programs)}

    def writes(self, values: Values) -> None:
        (self._folder / "my-values.yaml").write_text(yaml.safe_dump(values))

    def types(self, text: str, **variables: str) -> None:
        """Raises AssertionError with what was said, when a command fails."""
        said = self._folder / "said"
        with said.open("w") as out:
            # what it leaves in the background ends with it
            done = subprocess.run(
                ["setsid", "--wait", "bash", "-euo", "pipefail", "-c", _SHELL + text],
                cwd=self._folder,
                env=self._environment | variables,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=1500,
            )
        print(f"$ {text}{said.read_text()[-1500:]}")
        assert done.returncode == 0, f"{text}\n{said.read_text()}"


# A port-forward takes a moment before it listens; a reader's hands are slower than that.
_SHELL = r"""
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
curl() {
  until command curl --silent --output /dev/null http://127.0.0.1:8000/; do sleep 0.2; done
  command curl --fail-with-body "$@"
}
"""


def test_the_commands_of_these_pages_work_in_their_order(
    release: Release, tmp_path: Path, first_node: str, second_node: str
) -> None:
    """Commands of the pages on installing, upgrading, troubleshooting, keys and uninstalling."""
    for port in FORWARDED:
        with socket.socket() as free:
            free.bind(("127.0.0.1", port))
    release.remove()
    release.changed()
    restricted_namespace(release.namespace)
    values = yaml.safe_load(SMALL.read_text())
    for what in ("head", "redis"):  # another node is drained
        values[what]["nodeSelector"] = {HOST: first_node}
    reader = Reader(tmp_path)
    reader.writes(values)
    for page in ORDER:
        for block in shell_blocks(DOCS / f"{page}.md"):
            if block.not_run:
                continue
            engines = release.pods("engine")
            pod = release.pod("engine") if engines else ""
            print(f"\n{block.where}")
            reader.types(block.text, NODE=second_node, POD=pod)
            if page != "uninstall":
                kubectl("uncordon", second_node)
                release.wait()
        if page == "install":
            notes = run("get", "notes", release.name, "--namespace", release.namespace)
            reader.types(_commands(notes))
            reader.writes(values | {"auth": {"existingSecret": "llm-auth"}})
    until("no pod left", lambda: not release.pods(), within_s=900)
    release.remove()


def _commands(notes: str) -> str:
    """The lines that the notes set apart, before they list what is not enabled."""
    told = notes.partition("Not enabled:")[0]
    return "\n".join(line[2:] for line in told.splitlines() if line.startswith("  "))
