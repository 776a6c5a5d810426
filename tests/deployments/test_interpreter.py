"""A gateway's interpreter never keeps its event loop from any stream for long."""

import json
import subprocess
import sys
from pathlib import Path

CODE = """
import gc, json, sys
import deployments.gateway.gateway
from deployments.process.interpreter import keep_responsive

before = len(gc.get_objects())
keep_responsive()
print(json.dumps([before, len(gc.get_objects()), sys.getswitchinterval()]))
"""


def test_garbage_collection_skips_imported_objects_and_threads_switch_often() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    before, after, interval_s = json.loads(done.stdout.splitlines()[-1])
    assert before > 50_000
    assert after < before / 50
    assert interval_s <= 0.001
