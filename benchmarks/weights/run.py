"""Quantize the embedded model, evaluate it and try speculation: make bench-weights

Runs `antefix quantize`, `evaluate` and `tune-speculation`, one after the other. The pages about
Kubernetes calibrate, the other pages of this project evaluate. Prompts of greedy answers and of
speculation are the first questions of MT-bench, or those of ARGS="--prompts FILE", one per line.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.results import report
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.options import parser_of
from benchmarks.harness.results.public_data import QUESTIONS, find
from cli.common.exit_codes import ExitCode
from deployments.models.model import EMBEDDED, embedded_model
from deployments.models.model_config import model_config
from deployments.offline.offline_engine import OfflineEngine
from weights.model.cache_dtype import CACHE_DTYPES
from weights.model.checkpoint import weight_bytes
from weights.model.memory import GIB, kv_tokens
from weights.model.model_shape import shape_of

ROOT = Path(__file__).parents[2]
SCHEMES = ("rtn", "awq", "gptq", "w8a8-smoothquant")
WINDOW = 512
# enough to catch the ruined one
FEW_WINDOWS = 4
ROUNDS = 2
# AWQ takes minutes on two cores
CALIBRATION = ("--samples", "8", "--sample-tokens", "256")
ANSWERED, SPECULATED = 16, 8
# about what users would set; no 4 bits of this model exceed it
GATE_KL = 0.5
ENGINE = {"dtype": "float32", "max_model_len": 1024, "enforce_eager": True}
# vLLM's CPU build chooses it
BLOCK_TOKENS = 128
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@stopped_in_the_end()
def main() -> None:
    parser = parser_of("weights.run", __doc__)
    parser.add_argument("--prompts", type=Path, help="Prompts to answer, as for antefix evaluate.")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="rtn among them.")
    parser.add_argument("--windows", type=int, default=48, help=f"{WINDOW}-token windows to read.")
    asked = parser.parse_args()
    prompts = asked.prompts or find(QUESTIONS)
    with tempfile.TemporaryDirectory(prefix="antefix-weights-") as folder:
        bench = WeightsBench(Path(folder), prompts, asked.windows)
        found = {scheme: bench.quantized(scheme) for scheme in asked.schemes.split(",")}
        ruined = bench.ruined()
        speculation = bench.speculation()
        planned, real = bench.kv_cache()
    goals = _goals(found, ruined, speculation, planned / real)
    figures = {
        "schemes": found,
        "ruined": ruined,
        "speculation": speculation,
        "kv_tokens": {"planned": planned, "engine": real},
    }
    report.finish("weights", figures, goals, seeds=[])


class WeightsBench:
    """Runs the commands; `folder` holds what they write."""

    def __init__(self, folder: Path, prompts: Path, windows: int) -> None:
        self._folder = folder
        self._windows = windows
        self._prompts = self._first(prompts, ANSWERED)
        self._few_prompts = self._first(prompts, SPECULATED)
        self._reference = embedded_model(lambda fraction, step: None)
        self._read = folder / "read.txt"
        self._calibration = folder / "calibration.txt"
        docs = ROOT / "docs"
        self._calibration.write_text(_text_of(sorted((docs / "kubernetes").glob("*.md"))))
        self._read.write_text(_text_of([ROOT / "README.md", *sorted(docs.glob("*.md"))]))

    def _first(self, prompts: Path, count: int) -> list[str]:
        file = self._folder / f"{count}{prompts.suffix}"
        file.write_text("".join(prompts.read_text().splitlines(keepends=True)[:count]))
        return ["--prompts", str(file)]

    def quantized(self, scheme: str) -> dict[str, Any]:
        """What one scheme writes, and what it lost."""
        out = self._folder / scheme
        made, _ = _antefix(
            *("quantize", EMBEDDED, "--scheme", scheme, "--output-dir", str(out)),
            *("--calibration", str(self._calibration), *CALIBRATION),
        )
        more = ["--rounds", str(ROUNDS), *self._prompts]
        lost, _ = self._evaluated(out, self._windows, more)
        return {
            "group_size": made["group_size"],
            "seconds": made["seconds"],
            "bytes_ratio": weight_bytes(out) / weight_bytes(self._reference),
            "perplexity": lost["candidate"]["perplexity"],
            "reference_perplexity": lost["reference"]["perplexity"],
            "kl": lost["kl"],
            "top_1_agreement": lost["top_1_agreement"],
            "answers": lost["answers"],
            "rates": lost["rates"],
            "tokens": lost["tokens"],
        }

    def ruined(self) -> dict[str, Any]:
        """A quantization with one layer's scales doubled, at the gate."""
        out = self._folder / "ruined"
        shutil.copytree(self._folder / "rtn", out)
        _double_scales(out / "model.safetensors", ".layers.10.mlp.")
        gate = ["--max-kl", str(GATE_KL), "--rounds", "0"]
        lost, code = self._evaluated(out, FEW_WINDOWS, gate)
        return {"kl": lost["kl"], "exit_code": code, "exceeded": lost["exceeded"]}

    def speculation(self) -> dict[str, Any]:
        """Tune speculation for the laptop's engine, with one request at a time."""
        found, _ = _antefix(
            *("tune-speculation", "laptop", "--pool", "chat", "--concurrency", "1"),
            *("--method", "ngram,draft_model", "--draft-layers", "6", "--draft-lengths", "2,4"),
            *("--max-tokens", "48", "--rounds", str(ROUNDS), *self._few_prompts),
        )
        return found

    def kv_cache(self) -> tuple[int, int]:
        """Tokens in a KV cache of 1 GiB: as planned, and as the engine reports it."""
        shape = shape_of(model_config(EMBEDDED) or {})
        log = self._folder / "engine.log"
        with OfflineEngine.start(str(self._reference), ENGINE, log=log, env=ENVIRONMENT) as engine:
            real = engine.loaded.kv_tokens
        return kv_tokens(shape, GIB, CACHE_DTYPES["float32"], BLOCK_TOKENS), real

    def _evaluated(self, out: Path, windows: int, more: list[str]) -> tuple[dict[str, Any], int]:
        return _antefix(
            *("evaluate", EMBEDDED, str(out), "--text", str(self._read)),
            # compiling takes minutes on two cores, for each engine
            *("--engine-arg", "enforce_eager=true"),
            *("--windows", str(windows), "--window", str(WINDOW), *more),
        )


def _antefix(*arguments: str) -> tuple[dict[str, Any], int]:
    """A command's answer and exit code. Ends the benchmark without an answer."""
    command = [sys.executable, "-m", "cli.main", *arguments, "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    answer = json.loads(done.stdout) if done.stdout else {"error": {"message": "no answer"}}
    if "error" in answer:
        raise SystemExit(f"antefix {' '.join(arguments)}: {answer['error']['message']}")
    return answer, done.returncode


def _text_of(files: list[Path]) -> str:
    return "\n\n".join(file.read_text() for file in files)


def _double_scales(file: Path, layer: str) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    scales = [name for name in tensors if layer in name and name.endswith("scale")]
    assert scales
    save_file({n: t * 2 if n in scales else t for n, t in tensors.items()}, file, {"format": "pt"})


def _goals(
    found: dict[str, Any],
    ruined: dict[str, Any],
    speculation: dict[str, Any],
    kv_ratio: float,
) -> dict[str, Any]:
    equal = min(one["equal_answers"] for one in speculation["measured"])
    four_bits = max(one["bytes_ratio"] for one in found.values() if one["group_size"])
    caught = float(ruined["exit_code"] == ExitCode.GATE)
    goals = {
        "greedy_equality": report.goal(equal, at_least=1),
        "bytes_ratio_of_4_bits": report.goal(four_bits, at_most=0.45),
        "gate_caught_the_ruined": report.goal(caught, at_least=1),
        "kv_budget_error": report.goal(abs(kv_ratio - 1), at_most=0.02),
    }
    if {"awq", "rtn"} <= found.keys():
        for what in ("kl", "perplexity"):
            awq, rtn = (found[scheme][what]["value"] for scheme in ("awq", "rtn"))
            goals[f"awq_{what}_over_rtn"] = report.goal(awq / rtn, at_most=1)
    return goals


if __name__ == "__main__":
    main()
