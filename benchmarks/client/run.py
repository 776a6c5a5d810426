"""Compare antefix bench with vllm bench serve: make bench-client

Both clients send requests of the same lengths at the same times to one vLLM server, in turns. The
server has never seen the prompts: chats from antefix bench, as many token ids from vllm bench
serve. antefix bench counts from when a request was due, vllm bench serve from when it was sent.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.fleets.launched import Launched
from benchmarks.harness.fleets.small_model import small_model
from benchmarks.harness.load.trace_player import poisson
from benchmarks.harness.results import report
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.options import parser_of
from cli.local.ports import LOOPBACK, free_ports
from weights.model.cpu_dtype import dtype_of_this_cpu

MODEL = "small"
PROMPT_TOKENS, ANSWER_TOKENS, RATE, SECONDS = (100, 500), (16, 64), 2.0, 25.0
START_S, STOP_S = 180.0, 30.0
# `vllm bench serve` itself needs a package named vllm, unlike vLLM's build for CPUs.
VLLM_BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
HASHED_TOKENS = 512
# Metrics of vllm bench serve and antefix bench, whose medians should agree this well.
NAMES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "gap_s", "e2el": "e2e_s"}
WITHIN = 0.05
FIGURES = ("mean", "p50", "p90")

# By metric and figure, in ms.
Measured = Mapping[str, Mapping[str, float]]


@contextlib.contextmanager
def vllm_server(model: Path, log: Path) -> Iterator[str]:
    """Start vLLM's server, and yield its address. Raises RuntimeError when it does not start."""
    (port,) = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    arguments = [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", LOOPBACK),
        *("--served-model-name", MODEL, "--port", str(port), "--max-model-len", "2048"),
        *("--dtype", dtype_of_this_cpu().dtype, "--max-num-seqs", "16", "--enforce-eager"),
        "--enable-prompt-tokens-details",
    ]
    server = Launched([sys.executable, *arguments], log, {**settings, "OMP_NUM_THREADS": "1"})
    try:
        server.until_healthy(url, START_S)
        yield url
    finally:
        server.stop(STOP_S)


class Clients:
    """Both clients of one server. Their files are in `folder`."""

    def __init__(self, url: str, model: Path, folder: Path) -> None:
        self._url = url
        self._model = model
        self._folder = folder
        self._requests = 0

    def prepare(self, seed: int) -> None:
        """Write the trace, and play it once: vLLM's client gets the times and token counts."""
        sizes = PROMPT_TOKENS, ANSWER_TOKENS
        trace = poisson("t", lambda at: RATE, RATE, SECONDS, sizes, seed)
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        for request in trace.requests:
            at = f"2026-01-01 00:{int(request.at // 60):02}:{request.at % 60:09.6f}"
            lines.append(f"{at},{request.prompt_tokens},{request.answer_tokens}")
        (self._folder / "ours.csv").write_text("\n".join(lines) + "\n")
        self._ours()
        theirs = []
        record = (self._folder / "ours.jsonl").read_text().splitlines()
        for number, sent in enumerate(map(json.loads, record)):
            hashes = sent["prompt_tokens"] // HASHED_TOKENS + 1
            told = {
                "timestamp": sent["due_s"],
                "input_length": sent["prompt_tokens"],
                "output_length": sent["output_tokens"],
                "hash_ids": [f"{number}-{part}" for part in range(hashes)],
            }
            theirs.append(json.dumps(told) + "\n")
        self._requests = len(theirs)
        (self._folder / "theirs.jsonl").write_text("".join(theirs))

    def ours(self) -> Measured:
        result = self._ours()
        if warnings := result["warnings"]:
            print("\n".join(warnings), flush=True)
        return {
            name: {figure: 1000 * result[key][figure] for figure in FIGURES}
            for name, key in NAMES.items()
        }

    def _ours(self) -> dict[str, Any]:
        trace, record = self._folder / "ours.csv", self._folder / "ours.jsonl"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "cli.main", "bench", "--base-url", f"{self._url}/v1"),
                *(
                    "--api-key",
                    "none",
                    "--trace",
                    str(trace),
                    "--record",
                    str(record),
                    "-o",
                    "json",
                ),
                *("--duration", str(SECONDS)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        result: dict[str, Any] = json.loads(done.stdout)
        if result["errors"]:
            raise RuntimeError(f"requests failed: {result['errors']}")
        return result

    def theirs(self) -> Measured:
        percentiles = ("--percentile-metrics", ",".join(NAMES), "--metric-percentiles", "50,90")
        subprocess.run(
            [
                *(sys.executable, "-c", VLLM_BENCH_SERVE, "--backend", "openai"),
                *("--base-url", self._url, "--endpoint", "/v1/completions", "--model", MODEL),
                *("--tokenizer", str(self._model), "--dataset-name", "timed_trace"),
                *("--dataset-path", str(self._folder / "theirs.jsonl")),
                *("--timed-trace-chunk-hash-size", str(HASHED_TOKENS)),
                *("--num-prompts", str(self._requests), "--ignore-eos", "--temperature", "0"),
                *("--save-result", "--result-dir", str(self._folder)),
                *("--result-filename", "theirs.json", "--disable-tqdm", *percentiles),
            ],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        result = json.loads((self._folder / "theirs.json").read_text())
        if result["completed"] != self._requests:
            raise RuntimeError(f"{result['completed']} of {self._requests} were answered")
        return {
            name: {figure: result[f"{figure}_{name}_ms"] for figure in FIGURES} for name in NAMES
        }


def measure(rounds: int) -> dict[str, list[Measured]]:
    """What each client measured, in each round."""
    model = small_model()
    with tempfile.TemporaryDirectory(prefix="afx-bench-") as name:
        folder = Path(name)
        with vllm_server(model, folder / "vllm.log") as url:
            clients = Clients(url, model, folder)
            clients.prepare(seed=1)
            found: dict[str, list[Measured]] = {"antefix bench": [], "vllm bench serve": []}
            both = (("antefix bench", clients.ours), ("vllm bench serve", clients.theirs))
            for number in range(rounds):
                for who, measured in both if number % 2 else reversed(both):
                    found[who].append(measured())
                    print(who, json.dumps(found[who][-1]), flush=True)
    return found


def medians(rounds: Sequence[Measured]) -> dict[str, dict[str, float]]:
    """Over the rounds."""
    return {
        name: {f: statistics.median(of[name][f] for of in rounds) for f in FIGURES}
        for name in NAMES
    }


def goals(found: Mapping[str, Sequence[Measured]]) -> dict[str, Any]:
    ours, theirs = (medians(rounds) for rounds in found.values())
    return {
        f"{name}_{figure}_off": report.goal(
            abs(ours[name][figure] / theirs[name][figure] - 1), at_most=WITHIN
        )
        for name in NAMES
        for figure in ("mean", "p50")
    }


@stopped_in_the_end()
def main() -> None:
    parser = parser_of("client.run", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each client, in turns")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    found = measure(options.rounds)
    figures = {who: medians(rounds) for who, rounds in found.items()}
    report.finish("client", figures, goals(found), seeds=[1])


if __name__ == "__main__":
    main()
