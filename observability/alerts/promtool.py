"""Check of a rule file by Prometheus' promtool, if it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path


def complaints(rules: str) -> str | None:
    """Return promtool's complaint in one line; "" if there is none, None without promtool."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rules.yaml")
        file.write_text(rules, encoding="utf-8")
        done = subprocess.run(
            [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
        )
    if done.returncode == 0:
        return ""
    # the first line says FAILED; the others name lines of a file that no longer exists
    lines = done.stderr.replace(str(file), "").splitlines()[1:]
    return "; ".join(re.sub(r"^[:\s\d]+", "", line) for line in lines if line.strip())
