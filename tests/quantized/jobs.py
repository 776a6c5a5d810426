"""What is quantized, in one process for all: importing llm-compressor takes most of its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from common.machine import machine
from weights.quantize.method_options import OptionValue
from weights.quantize.quantize_job import QuantizeJob

Options = dict[str, OptionValue]
ROOT = Path(__file__).parents[2]
# What quantizes, and what it imports.
CODE = ("common", "deployments/models", "deployments/offline", "weights")
# Jobs that are no scheme's default: scheme and options.
OPTIONED: dict[str, tuple[str, Options]] = {
    "awq-symmetric": ("awq", {"grid": 3, "symmetric": True}),
    "gptq-unordered": ("gptq", {"act_order": False, "damp": 0.1}),
    "smooth": ("w8a8-smoothquant", {"smoothing": 0.5}),
    "smoother": ("w8a8-smoothquant", {"smoothing": 0.85}),
}
# All from the beginning, each scheme also from where a run that was killed after a layer left.
QUANTIZE = """
import shutil, sys
from pathlib import Path
from weights.quantize.quantizing import QuantizingProgress, quantize

schemes = sys.argv[1].split(",")
for whole in map(Path, sys.argv[2:]):
    quantize(whole, QuantizingProgress(sys.stdout))
    if whole.name not in schemes:
        continue
    resumed = whole.with_name(whole.name + "-resumed")
    (resumed / "layers").mkdir(parents=True)
    shutil.copy(whole / "job.json", resumed)
    shutil.copy(whole / "layers" / "0001.safetensors", resumed / "layers")
    quantize(resumed, QuantizingProgress(sys.stdout))
"""


def job(model: Path, text: Path, scheme: str, options: Options | None = None) -> QuantizeJob:
    return QuantizeJob(str(model), None, scheme, 32, 1, str(text), 4, 64, options or {})


def inputs_digest(model: Path, text: Path, packages: Path) -> str:
    """Return a digest of all inputs of `make`: the model, the text, this machine's processor, the
    packages, and the code that quantizes."""
    about = machine()
    digest = sha256(json.dumps([about["cpu"], about["python"], packages.name]).encode())
    code = (path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    for path in sorted([text, Path(__file__), *model.iterdir(), *code]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def make(folder: Path, model: Path, text: Path, schemes: Sequence[str], packages: Path) -> None:
    """Fills `folder`: one a scheme, one of what that makes when resumed, one each of OPTIONED."""
    jobs = {scheme: job(model, text, scheme) for scheme in schemes}
    jobs |= {name: job(model, text, *optioned) for name, optioned in OPTIONED.items()}
    for name, one in jobs.items():
        (folder / name).mkdir()
        (folder / name / "job.json").write_text(one.to_json())
    done = subprocess.run(
        [sys.executable, "-c", QUANTIZE, ",".join(schemes), *(str(folder / name) for name in jobs)],
        env={**os.environ, "PYTHONPATH": f"{packages}:{ROOT}", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
