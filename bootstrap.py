"""Makes the repository's `.venv`: CPU PyTorch, every pinned package, then Antefix itself.

    python3 bootstrap.py          what `make up` needs    (requirements/cpu.lock)
    python3 bootstrap.py --dev    what `make test` needs  (requirements/dev.lock)

Returns at once when nothing changed; stopped halfway, the next run goes on. A failure is one
line that says what to do, with an exit code of its own; all that pip said is in
`.venv/bootstrap.log`. Standard library only, and written for Python 3.6 and later, so that a
wrong Python gets that line, or is replaced by a right one from PATH, instead of a SyntaxError.
"""

import argparse
import ctypes
import errno
import fcntl
import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Callable, TextIO  # collections.abc is no generic in 3.6

SUPPORTED = ("3.11", "3.12")
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALLED_GB = 8
SPARE_GB = 2
ATTEMPTS_WHILE_PROGRESSING = 3

EXIT_OTHER = 1
EXIT_WRONG_PYTHON = 3
EXIT_NO_VENV_MODULE = 4
EXIT_DISK_FULL = 5
EXIT_NO_NETWORK = 6
EXIT_HASH_MISMATCH = 7
EXIT_PIP_FAILED = 8
EXIT_NO_LIBRARY = 9
EXIT_INTERRUPTED = 130

PIN = re.compile(r"^[A-Za-z0-9][\w.\-]*==", re.MULTILINE)
CONSIDERED = re.compile(
    r"(?:Collecting|Requirement already satisfied:|Ignoring|Processing (?:\S*/)?) ?([\w.\-]+)"
)
REFUSED = re.compile(r"DO NOT MATCH THE HASHES[^\n]*\n([\w.\-]+)")
INSTALLING = "Installing collected packages: "
NETWORK_MARKS = re.compile(
    r"NewConnectionError|Failed to establish a new connection|Max retries exceeded|"
    r"ConnectTimeoutError|ReadTimeoutError|Read timed out|ConnectionResetError|ProxyError|"
    r"Name or service not known|name resolution|Network is unreachable|connection broken by|"
    r"Connection broken|IncompleteRead|SSLError|CERTIFICATE_VERIFY_FAILED"
)
ERRNO = re.compile(r"\[Errno -?\d+\] (\w[\w ]+)")


class Failure(Exception):
    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code
        self.line = line


class Bar:
    """Progress on one redrawn line, or a line each ten percent where there is no terminal."""

    WIDTH = 30

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._redraws = stream.isatty()
        self._shown = -1

    def update(self, fraction: float, label: str) -> None:
        percent = int(100 * min(max(fraction, 0.0), 1.0))
        if self._redraws:
            filled = self.WIDTH * percent // 100
            drawn = "#" * filled + "." * (self.WIDTH - filled)
            self._write("\r\033[K[{}] {:3d} %  {}".format(drawn, percent, label[:36]))
        elif percent // 10 > self._shown // 10:
            self._write("{:3d} %  {}\n".format(percent, label))
            self._shown = percent

    def close(self) -> None:
        if self._redraws:
            self._write("\r\033[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Environment:
    """The `.venv` of a repository and what is recorded in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.log = self.folder / "bootstrap.log"
        self.temporary = self.folder / "tmp"

    def is_ready(self, profile: str) -> bool:
        stamp = self._stamp(profile)
        try:
            return self.python.exists() and stamp.read_text() == self._fingerprint(profile)
        except OSError:
            return False

    def mark_ready(self, profile: str) -> None:
        for held in ("cpu", "dev") if profile == "dev" else ("cpu",):
            self._stamp(held).write_text(self._fingerprint(held))

    def forget_ready(self) -> None:
        for profile in ("cpu", "dev"):
            if self._stamp(profile).exists():
                self._stamp(profile).unlink()

    def lock_file(self, profile: str) -> Path:
        return self.root / "requirements" / (profile + ".lock")

    def distributions(self) -> "list[Path]":
        return list(self.folder.glob("lib/python3.*/site-packages/*.dist-info"))

    def drop_half_installed(self) -> None:
        """pip writes RECORD last, and takes a folder without one for an installed package."""
        for info in self.distributions():
            if not (info / "RECORD").exists():
                shutil.rmtree(str(info), ignore_errors=True)
        for leftover in self.folder.glob("lib/python3.*/site-packages/~*"):
            shutil.rmtree(str(leftover), ignore_errors=True)

    def clear_temporary(self) -> None:
        shutil.rmtree(str(self.temporary), ignore_errors=True)
        self.temporary.mkdir()

    def _stamp(self, profile: str) -> Path:
        return self.folder / ("bootstrap-" + profile + ".stamp")

    def _fingerprint(self, profile: str) -> str:
        digest = hashlib.sha256()
        for path in (
            self.lock_file(profile),
            self.root / "requirements" / "torch.txt",
            self.root / "pyproject.toml",
            self.folder / "pyvenv.cfg",
        ):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


def main(arguments: "list[str]", root: Path) -> int:
    parser = argparse.ArgumentParser(description="Make the repository's .venv.")
    parser.add_argument("--dev", action="store_true", help="with what the tests and linters need")
    profile = "dev" if parser.parse_args(arguments).dev else "cpu"
    environment = Environment(root)
    bar = Bar(sys.stderr)
    try:
        if profile == "cpu":  # tests that would need it are skipped
            check_libraries()
        if environment.is_ready(profile):
            return 0
        with open(str(root / "pyproject.toml")) as held:
            wait_for_turn(held.fileno())
            if not environment.is_ready(profile):
                install(environment, profile, bar, held.fileno())
    except Failure as failure:
        bar.close()
        return complain(failure)
    except OSError as error:
        bar.close()
        if error.errno == errno.ENOSPC:
            return complain(disk_full(environment))
        return complain(Failure(EXIT_OTHER, str(error)))
    except KeyboardInterrupt:
        bar.close()
        return complain(Failure(EXIT_INTERRUPTED, "interrupted; the next run goes on from here"))
    bar.close()
    return 0


def complain(failure: Failure) -> int:
    sys.stderr.write("bootstrap: {}\n".format(failure.line))
    return failure.code


def wait_for_turn(descriptor: int) -> None:
    """pip inherits the descriptor: the turn ends with the last process that writes to `.venv`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.stderr.write("bootstrap: another one is at work on this .venv; waiting for it\n")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def install(environment: Environment, profile: str, bar: Bar, held: int) -> None:
    check_disk(environment)
    if venv_version(environment.python) not in SUPPORTED:
        python = find_python(os.environ.get("PATH", ""))
        bar.update(0.0, "making .venv")
        make_venv(environment, python)
    environment.forget_ready()
    environment.drop_half_installed()
    environment.clear_temporary()
    with open(str(environment.log), "w") as log:
        pip = Pip(environment, log, bar, held)
        pip.install_torch(0.01, 0.15)
        pip.install_lock(environment.lock_file(profile), 0.15, 0.97)
        pip.install_project(0.97, 1.0)
    environment.clear_temporary()
    environment.mark_ready(profile)
    bar.update(1.0, "ready")


def find_python(search_path: str) -> str:
    """The caller's interpreter where it serves, else a python3.11 or python3.12 on PATH."""
    candidates = [sys.executable] + [
        os.path.join(folder, "python" + version)
        for version in SUPPORTED
        for folder in search_path.split(os.pathsep)
        if folder
    ]
    without_venv = ""
    for candidate in candidates:
        said = ask(candidate, "import sys; print('%d.%d' % sys.version_info[:2])")
        if said not in SUPPORTED:
            continue
        if ask(candidate, "import venv, ensurepip; print('yes')") == "yes":
            return ask(candidate, "import os, sys; print(os.path.realpath(sys.executable))")
        without_venv = without_venv or said
    if without_venv:
        raise no_venv_module(without_venv)
    raise Failure(
        EXIT_WRONG_PYTHON,
        "this is Python {}.{} and no python{} is on PATH; install one of them (on Debian and "
        "Ubuntu: apt-get install python3.11 python3.11-venv), or name one that is elsewhere: "
        "make PYTHON=/path/to/python3.11 ...".format(
            sys.version_info[0], sys.version_info[1], " or python".join(SUPPORTED)
        ),
    )


def ask(python: str, code: str) -> str:
    try:
        done = subprocess.run(
            [python, "-c", code],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def venv_version(python: Path) -> str:
    """Major and minor version of a `.venv` that works, else the empty string."""
    return ask(str(python), "import sys, pip; print('%d.%d' % sys.version_info[:2])")


def make_venv(environment: Environment, python: str) -> None:
    done = subprocess.run(
        [python, "-m", "venv", "--clear", str(environment.folder)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace").strip()
        if "ensurepip" in said:
            raise no_venv_module("3")
        raise explain(said.splitlines(), environment)


def no_venv_module(version: str) -> Failure:
    return Failure(
        EXIT_NO_VENV_MODULE,
        "Python {0} cannot make virtual environments; install its venv module (on Debian and "
        "Ubuntu: apt-get install python{0}-venv), then run this again".format(version),
    )


def check_libraries(load: "Callable[[str], object]" = ctypes.CDLL) -> None:
    """vLLM's CPU build is linked to one library that no wheel carries."""
    try:
        load("libnuma.so.1")
    except OSError:
        raise Failure(
            EXIT_NO_LIBRARY,
            "vLLM needs the system library libnuma.so.1; install it (Debian and Ubuntu: apt-get "
            "install libnuma1, Fedora: dnf install numactl-libs), then run this again",
        ) from None


def check_disk(environment: Environment) -> None:
    free = shutil.disk_usage(str(environment.root)).free
    there = sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(str(environment.folder))
        for name in names
    )
    needed = max(INSTALLED_GB * 10**9 - there, SPARE_GB * 10**9)
    if free < needed:
        raise Failure(
            EXIT_DISK_FULL,
            "{:.1f} GB free in {}, {:.1f} GB needed; free some space, then run this again".format(
                free / 1e9, environment.root, needed / 1e9
            ),
        )


def disk_full(environment: Environment) -> Failure:
    return Failure(
        EXIT_DISK_FULL,
        "the disk is full (no space left on device); free {} GB for {} and pip's cache, then run "
        "this again: it goes on where it stopped".format(INSTALLED_GB, environment.folder),
    )


def explain(
    said: "list[str]",
    environment: Environment,
    index: str = "its package index",
    instead: str = "point PIP_INDEX_URL at a mirror",
) -> Failure:
    """The one line for a pip that failed, from the lines it printed."""
    text = "\n".join(said)
    if "No space left on device" in text:
        return disk_full(environment)
    refused = REFUSED.search(text)
    if refused:
        return Failure(
            EXIT_HASH_MISMATCH,
            "{} is not the file that requirements/ pins: the index or a cache altered it; try "
            "`{} -m pip cache purge` and another index or mirror, then run this again".format(
                refused.group(1), environment.python
            ),
        )
    mark = NETWORK_MARKS.search(text)
    if mark:
        reason = ERRNO.search(text)
        return Failure(
            EXIT_NO_NETWORK,
            "pip cannot reach {} ({}); connect this machine, or {}, then run this again: it goes "
            "on where it stopped (log: {})".format(
                index, reason.group(1) if reason else mark.group(), instead, environment.log
            ),
        )
    errors = [line for line in said if line.startswith(("ERROR:", "error:", "Error:"))]
    last = errors[-1] if errors else (said[-1] if said else "pip ended without a word")
    return Failure(EXIT_PIP_FAILED, "{} (log: {})".format(last, environment.log))


class Pip:
    """Runs the `.venv`'s pip; each step raises `Failure` with its one line."""

    def __init__(self, environment: Environment, log: TextIO, bar: Bar, held: int) -> None:
        self._environment = environment
        self._log = log
        self._bar = bar
        self._held = held

    def install_torch(self, begin: float, end: float) -> None:
        pin = (self._environment.root / "requirements" / "torch.txt").read_text().strip()
        name, version = pin.split("==")
        if any(
            re.match(re.escape(name + "-" + version) + r"(\+|\.dist-info)", info.name)
            for info in self._environment.distributions()
        ):
            return
        from_configured_indexes = ["--no-deps", pin + "+cpu"]
        from_its_own_index = ["--no-deps", "--index-url", TORCH_CPU_INDEX, pin]
        code, said = self._run(from_configured_indexes, 1, begin, end)
        if code == 0:
            return
        failure = explain(said, self._environment)
        if failure.code != EXIT_PIP_FAILED:
            raise failure
        self._install(
            from_its_own_index,
            1,
            begin,
            end,
            index="PyTorch's CPU index, " + TORCH_CPU_INDEX,
            instead="point PIP_EXTRA_INDEX_URL at a mirror that has {}+cpu".format(pin),
        )

    def install_lock(self, lock: Path, begin: float, end: float) -> None:
        pins = len(PIN.findall(lock.read_text()))
        self._install(["--no-deps", "--require-hashes", "-r", str(lock)], pins, begin, end)

    def install_project(self, begin: float, end: float) -> None:
        editable = ["--no-deps", "--no-build-isolation", "-e", str(self._environment.root)]
        self._install(editable, 1, begin, end)

    def _install(
        self, arguments: "list[str]", packages: int, begin: float, end: float, **source: str
    ) -> None:
        for attempt in range(1, ATTEMPTS_WHILE_PROGRESSING + 1):
            code, said = self._run(arguments, packages, begin, end)
            if code == 0:
                return
            failure = explain(said, self._environment, **source)
            downloaded = any(line.startswith("Downloading ") for line in said)
            # What was downloaded is in pip's cache, so another attempt gets further.
            if failure.code != EXIT_NO_NETWORK or not downloaded:
                break
            self._log.write("# attempt {} was cut off\n".format(attempt))
        raise failure

    def _run(
        self, arguments: "list[str]", packages: int, begin: float, end: float
    ) -> "tuple[int, list[str]]":
        pip = [str(self._environment.python), "-m", "pip"]
        command = pip + ["install", "--progress-bar", "off"] + arguments
        self._log.write("$ {}\n".format(" ".join(command)))
        self._log.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._variables(),
            pass_fds=(self._held,),
        )
        lines = queue.Queue()  # type: queue.Queue[str | None]
        threading.Thread(target=feed, args=(process.stdout, lines), daemon=True).start()
        steps = InstallSteps(self._environment, packages)
        said = []  # type: list[str]
        try:
            while True:
                try:
                    line = lines.get(timeout=0.5)
                    if line is None:
                        break
                    self._log.write(line + "\n")
                    said.append(line.strip())
                    steps.hear(line.strip())
                except queue.Empty:
                    pass
                self._bar.update(begin + (end - begin) * steps.fraction(), steps.label)
            return process.wait(), said
        finally:
            self._log.flush()
            if process.poll() is None:
                process.kill()
                process.wait()

    def _variables(self) -> "dict[str, str]":
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
        }
        # pip unpacks gigabytes there, and /tmp is often a small memory disk.
        kept["TMPDIR"] = str(self._environment.temporary)
        kept["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
        kept["PIP_NO_INPUT"] = "1"
        return kept


class InstallSteps:
    """How far one `pip install` is: pip tells what it collects, but installs in silence, so
    then the folders that appear in `.venv` are counted."""

    COLLECTING_SHARE = 0.6

    def __init__(self, environment: Environment, packages: int) -> None:
        self._environment = environment
        self._packages = max(packages, 1)
        self._collected = 0
        self._to_install = 0
        self._there_before = 0
        self.label = "asking pip"

    def hear(self, line: str) -> None:
        considered = CONSIDERED.match(line)
        if considered:
            self._collected += 1
            self.label = "downloading " + considered.group(1)
        elif line.startswith(INSTALLING):
            self._to_install = line.count(",") + 1
            self._there_before = len(self._environment.distributions())
            self.label = "installing {} package{}".format(
                self._to_install, "" if self._to_install == 1 else "s"
            )

    def fraction(self) -> float:
        if not self._to_install:
            return self.COLLECTING_SHARE * min(self._collected / self._packages, 1.0)
        appeared = len(self._environment.distributions()) - self._there_before
        installed = min(max(appeared, 0) / self._to_install, 1.0)
        return self.COLLECTING_SHARE + (1 - self.COLLECTING_SHARE) * installed


def feed(stream: "IO[bytes]", lines: "queue.Queue[str | None]") -> None:
    for raw in stream:
        lines.put(raw.decode("utf-8", "replace").rstrip("\n"))
    lines.put(None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parent))
