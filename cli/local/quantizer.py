"""Run a quantization in a child process, and move its result into place.

    <out>                    the whole quantized model, moved there in one rename
    <out>.partial/           job.json, its digest, the finished layers, the process's log
    <out>.partial/replaced   the previous <out>, until the new one is in place
    <out>.lock               held while quantizing

After a kill at any moment, the same command resumes after the last finished layer. Another command
starts over.
"""

import errno
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path

from common.child_process import Report, run_module
from common.errors import Problem
from common.file_lock import only_one
from deployments.models.checksums import flush_to_disk
from weights.quantize.quantize_job import QuantizeJob

ROOT = Path(__file__).parents[2]


def quantize(
    job: QuantizeJob,
    out: Path,
    packages: Path,
    report: Report,
    say: Callable[[str], None],
    replace: bool = False,
) -> None:
    """Quantize. Raises Problem if `out` exists and must not be replaced, or if quantizing fails."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with only_one(
            out.with_name(out.name + ".lock"),
            on_wait=lambda: say(f"waiting for another process that writes {out}"),
        ) as lock_fd:
            _quantize(job, out, packages, report, say, replace, lock_fd)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(out) from error
        raise Problem(
            f"{out} cannot be written: {error.strerror or error}",
            "choose another folder with --output-dir",
        ) from error


def _quantize(
    job: QuantizeJob,
    out: Path,
    packages: Path,
    report: Report,
    say: Callable[[str], None],
    replace: bool,
    lock_fd: int,
) -> None:
    partial = out.with_name(out.name + ".partial")
    if (partial / "replaced").exists() and not out.exists():
        (partial / "replaced").rename(out)
    if out.exists() and not replace:
        raise Problem(
            f"{out} already exists",
            "choose another folder with --output-dir, or replace it with --force",
        )
    _prepare(partial, job, say)
    _run(partial, job, packages, report, lock_fd)
    if out.exists():
        out.rename(partial / "replaced")
    (partial / "model").rename(out)
    flush_to_disk(out.parent)
    shutil.rmtree(partial)


def _prepare(partial: Path, job: QuantizeJob, say: Callable[[str], None]) -> None:
    digest = job.digest()
    kept = partial / "digest"
    if kept.exists():
        if kept.read_text() == digest:
            layers = len(list(partial.glob("layers/*.safetensors")))
            say(f"resuming an earlier run: {layers} layers are done")
            return
        say("starting over: model, text or options differ from those of the interrupted run")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    (partial / "job.json").write_text(job.to_json())
    kept.write_text(digest)


def _run(partial: Path, job: QuantizeJob, packages: Path, report: Report, lock_fd: int) -> None:
    log = partial / "quantize.log"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(packages), str(ROOT))),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if job.local:
        environment["HF_HUB_OFFLINE"] = "1"
    code = run_module(
        "weights.quantize.quantizing", [str(partial)], partial, environment, log, report, lock_fd
    )
    if code != 0:
        raise _failure(code, log, partial)


def _failure(code: int, log: Path, partial: Path) -> Problem:
    with log.open(errors="replace") as lines:
        last = [line.strip() for line in deque(lines, maxlen=20) if line.strip()]
    if any("No space left on device" in line or "os error 28" in line for line in last):
        return _disk_full(partial)
    if code == -signal.SIGKILL:
        return Problem(
            "quantizing was killed, perhaps because memory ran out",
            "give it more memory or fewer --samples, then run the same command again",
        )
    return Problem(
        f"quantizing failed: {last[-1] if last else f'it exited with {code}'}", f"see {log}"
    )


def _disk_full(folder: Path) -> Problem:
    return Problem(
        f"the disk is full: no space left in {folder.parent}",
        "free some, then run the same command again: it resumes after the last finished layer",
    )
