"""Makes the repository's `.venv` with uv: CPU PyTorch, every pinned package, then Antefix itself.

    python3 bootstrap.py          what `make up` needs    (requirements/cpu.lock)
    python3 bootstrap.py --dev    what `make test` needs  (requirements/dev.lock)
    python3 bootstrap.py --uv     uv alone, in .cache/uv  (requirements/uv.lock)

Packages come from where pip's configuration says, which uv does not read. Returns at once when
nothing changed; stopped halfway, the next run goes on. A failure ends in one line that says what
to do. Standard library only, and written for Python 3.6 and later, so that a wrong Python gets
that line, or is replaced by a right one from PATH, instead of a SyntaxError.
"""

import argparse
import ast
import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
UV_VENV = ROOT / ".cache" / "uv"
UV = str(UV_VENV / "bin" / "uv")
LOCKS = ROOT / "requirements"

SUPPORTED = ("3.11", "3.12")
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NEW_GIB = 5
UPDATE_GIB = 2
INSTALLED = "lib/python3.*/site-packages/{}.dist-info"
VERSION = "import sys; print('%d.%d' % sys.version_info[:2], flush=True)"

# pip's settings of where packages are and how to get there, under uv's names.
UV_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX",),
    "extra-index-url": ("UV_INDEX",),
    "find-links": ("UV_FIND_LINKS",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "keyring-provider": ("UV_KEYRING_PROVIDER",),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "retries": ("UV_HTTP_RETRIES",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
}

FAILED = (
    "the reason is above. If it is the network, connect this machine, set HTTPS_PROXY or point "
    "PIP_INDEX_URL at a mirror; if it is a hash, run `.cache/uv/bin/uv cache clean` or use another "
    "index; if it is the disk, free {} GiB. Then run this again: it goes on where it stopped"
).format(NEW_GIB)


NO_TORCH = (
    "PyTorch's CPU build, {0}, is on no configured index, and {1} does not give it, for the reason "
    "above; connect this machine, set HTTPS_PROXY, or point PIP_EXTRA_INDEX_URL at a mirror that "
    "has {0}, then run this again"
)


class Failure(Exception):
    """Its text is the one line that the user gets."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the repository's .venv.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--dev", action="store_true", help="with what tests and linters need")
    which.add_argument("--uv", action="store_true", help="uv alone, in .cache/uv")
    chosen = parser.parse_args()
    profile = "dev" if chosen.dev else "cpu"
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"):
        os.environ.pop(name, None)
    try:
        if not (chosen.dev or chosen.uv):  # tests that would need it are skipped
            check_libraries()
        if not chosen.uv and is_ready(profile):
            return 0
        with open(str(ROOT / "pyproject.toml")) as turn:
            wait_for(turn.fileno())
            if chosen.uv:
                get_uv()
            elif not is_ready(profile):
                install(profile)
    except (Failure, OSError) as failure:
        sys.stderr.write("bootstrap: {}\n".format(failure))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("bootstrap: interrupted; the next run goes on from here\n")
        return 130
    return 0


def is_ready(profile: str) -> bool:
    try:
        return (VENV / "bin/python").exists() and stamp(profile).read_text() == wanted(profile)
    except OSError:
        return False


def stamp(profile: str) -> Path:
    return VENV / ("bootstrap-" + profile + ".stamp")


def wanted(profile: str) -> str:
    digest = hashlib.sha256()
    for path in (
        LOCKS / (profile + ".lock"),
        LOCKS / "torch.txt",
        ROOT / "pyproject.toml",
        VENV / "pyvenv.cfg",
    ):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def wait_for(turn: int) -> None:
    """Children inherit the descriptor: the turn ends with the last that writes to `.venv`."""
    os.set_inheritable(turn, True)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.stderr.write("bootstrap: another one is at work on this .venv; waiting for it\n")
        fcntl.flock(turn, fcntl.LOCK_EX)


def install(profile: str) -> None:
    check_disk()
    get_uv()
    if ask(str(VENV / "bin/python"), "-c", VERSION) not in SUPPORTED:
        python = str(UV_VENV / "bin/python")
        run(UV, "venv", "--quiet", "--clear", "--force", "--python", python, str(VENV))
    for each in ("cpu", "dev"):
        if stamp(each).exists():
            stamp(each).unlink()
    for info in VENV.glob(INSTALLED.format("*")):
        # uv writes INSTALLER last, and takes a folder without one for an installed package.
        if not (info / "INSTALLER").exists():
            shutil.rmtree(str(info))
    uv_install = [UV, "pip", "install", "--python", str(VENV / "bin/python"), "--no-deps"]
    uv_install += follow_pip()
    install_torch(uv_install)
    run(*uv_install, "--require-hashes", "-r", str(LOCKS / (profile + ".lock")))
    run(*uv_install, "--no-build-isolation", "-e", str(ROOT))
    for each in {"cpu", profile}:
        stamp(each).write_text(wanted(each))


def install_torch(uv_install: "list[str]") -> None:
    """PyTorch's CPU build: from the configured indexes, or else from its own."""
    pin = (LOCKS / "torch.txt").read_text().strip()
    if list(VENV.glob(INSTALLED.format(pin.replace("==", "-") + "*"))):
        return
    wheel = pin + "+cpu"
    looked = subprocess.run(
        uv_install + ["--dry-run", wheel], check=False, stderr=subprocess.DEVNULL
    )
    # 1: it is not there. 2: uv cannot tell, and the installation will say why.
    if looked.returncode != 1:
        run(*uv_install, wheel)
        return
    failed = NO_TORCH.format(wheel, TORCH_CPU_INDEX)
    run(*uv_install, "--default-index", TORCH_CPU_INDEX, wheel, failed=failed)


def get_uv() -> None:
    lock = LOCKS / "uv.lock"
    pinned = re.findall(r"^uv==(\S+)", lock.read_text(), re.MULTILINE)
    if not set(pinned) & set(ask(UV, "--version").split()):
        run(find_python(os.environ.get("PATH", "")), "-m", "venv", "--clear", str(UV_VENV))
        pip = (str(UV_VENV / "bin/python"), "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", "--no-input", "--require-hashes", "-r", str(lock))


def follow_pip() -> "list[str]":
    """Sets what uv reads to what pip is configured to do, and returns the options without a name.

    Who has configured uv as well gets what they told uv.
    """
    listed = ask(str(UV_VENV / "bin/python"), "-m", "pip", "config", "list").splitlines()
    said = {}
    for section in ("global", "install", ":env:"):
        for line in listed:
            name, _, value = line.partition("=")
            if name.startswith(section + ".") and ast.literal_eval(value):
                said[name[len(section) + 1 :]] = " ".join(ast.literal_eval(value).split())
    if "find-links" in said:
        said["find-links"] = ",".join(map(os.path.expanduser, said["find-links"].split()))
    for name, value in said.items():
        for variable in UV_NAMES.get(name, ()):
            if not (variable.startswith("UV_") and variable in os.environ):
                os.environ[variable] = value
    # pip takes the best of what all indexes have; so that uv does too.
    os.environ.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return ["--no-index"] if said.get("no-index", "").lower() in ("1", "true", "yes", "on") else []


def find_python(search_path: str) -> str:
    """The caller's interpreter where it serves, else a python3.11 or python3.12 on PATH."""
    named = [
        os.path.join(folder, "python" + version)
        for version in SUPPORTED
        for folder in search_path.split(os.pathsep)
        if folder
    ]
    without_venv = ""
    for candidate in [sys.executable] + named:
        said = ask(candidate, "-c", VERSION + "; import ensurepip, venv; print('venv')").split()
        if said and said[0] in SUPPORTED:
            if "venv" in said:
                return candidate
            without_venv = without_venv or said[0]
    if without_venv:
        raise Failure(
            "Python {0} cannot make virtual environments; install its venv module (on Debian and "
            "Ubuntu: apt-get install python{0}-venv), then run this again".format(without_venv)
        )
    raise Failure(
        "this is Python {}.{} and no python{} is on PATH; install one of them (on Debian and "
        "Ubuntu: apt-get install python3.11 python3.11-venv), or name one that is elsewhere: "
        "make PYTHON=/path/to/python3.11 ...".format(
            sys.version_info[0], sys.version_info[1], " or python".join(SUPPORTED)
        )
    )


def check_libraries() -> None:
    """vLLM's CPU build is linked to one library that no wheel carries."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        raise Failure(
            "vLLM needs the system library libnuma.so.1; install it (Debian and Ubuntu: apt-get "
            "install libnuma1, Fedora: dnf install numactl-libs), then run this again"
        ) from None


def check_disk() -> None:
    free = shutil.disk_usage(str(ROOT)).free / 2**30
    needed = UPDATE_GIB if list(VENV.glob(INSTALLED.format("vllm*"))) else NEW_GIB
    if free < needed:
        raise Failure(
            "{:.1f} GiB free in {}, {} GiB needed; free some space, then run this again".format(
                free, ROOT, needed
            )
        )


def ask(*command: str) -> str:
    """What a command prints, whether it succeeds or not; nothing when there is no such command."""
    try:
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip()


def run(*command: str, failed: str = FAILED) -> None:
    """The command tells the user itself how far it is, and why it fails."""
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, close_fds=False)
    if done.returncode != 0:
        raise Failure(failed)


if __name__ == "__main__":
    sys.exit(main())
