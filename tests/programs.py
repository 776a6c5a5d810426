"""The programs and libraries that tests use and no wheel brings.

    python3 tests/programs.py    installs what is missing, where this is root and there is apt-get

Says in one line what it installs. What is still missing afterwards is an error where CI is set,
and otherwise is left to the tests, which are skipped and say so. Standard library only, and for a
Python as old as bootstrap.py takes: it runs before there is a `.venv`.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

INSTALL = "apt-get install --no-install-recommends"

# The Debian package of each, and what it goes by on PATH, as a library or as a folder: any will do.
NEEDED = {
    "prometheus": ("prometheus", ["prometheus"]),
    "promtool": ("prometheus", ["promtool"]),
    "alertmanager": ("prometheus-alertmanager", ["alertmanager", "prometheus-alertmanager"]),
    "amtool": ("prometheus-alertmanager", ["amtool"]),
    "chromium": ("chromium", ["chromium", "google-chrome"]),
    # without it Chromium writes every letter as a box
    "a font": ("fonts-dejavu-core", ["/usr/share/fonts/truetype/dejavu"]),
    # the load balancer of docs/nginx.md
    "nginx": ("nginx-light", ["nginx", "/usr/sbin/nginx"]),
    # Playwright's driver is linked to it
    "libatomic.so.1": ("libatomic1", ["libatomic.so.1"]),
    # lays the network of the two-node test, where namespaces are allowed
    "ip": ("iproute2", ["ip"]),
    # vLLM's CPU build is linked to it
    "libnuma.so.1": ("libnuma1", ["libnuma.so.1"]),
}
# The parts of a Kubernetes of the tests' own, in addition to those of the script that starts it.
CLUSTER = {
    "containerd": ("containerd", ["containerd"]),
    "runc": ("runc", ["runc"]),
    "CNI plugins": ("containernetworking-plugins", ["/usr/lib/cni/bridge"]),
    "etcd": ("etcd-server", ["etcd"]),
    "iptables": ("iptables", ["iptables"]),
    "nft": ("nftables", ["nft"]),
    "conntrack": ("conntrack", ["conntrack"]),
    "socat": ("socat", ["socat"]),
    "openssl": ("openssl", ["openssl"]),
    "xz": ("xz-utils", ["xz"]),
    "buildah": ("buildah", ["buildah"]),
}
CLUSTER_SCRIPT = Path(__file__).resolve().parent.parent.parent / "shared" / "cluster" / "cluster.sh"
if CLUSTER_SCRIPT.exists() and os.getuid() == 0:
    NEEDED.update(CLUSTER)


def find(name: str) -> str:
    """Its path, or the name of the library; empty where there is none."""
    for candidate in NEEDED[name][1]:
        if ".so." in candidate:
            try:
                ctypes.CDLL(candidate)
            except OSError:
                continue
            return candidate
        if candidate.startswith("/") and Path(candidate).exists():
            return candidate
        path = shutil.which(candidate)
        if path:
            return path
    return ""


def remedy(name: str) -> str:
    return f"on Debian or Ubuntu, as root: {INSTALL} {NEEDED[name][0]}"


def packages() -> "list[str]":
    """Of all that is missing."""
    return sorted({NEEDED[name][0] for name in NEEDED if not find(name)})


def main() -> int:
    missing = packages()
    if missing and os.getuid() == 0 and shutil.which("apt-get"):
        print("Installing what the tests use: " + " ".join(missing), flush=True)
        install(missing)
        missing = packages()
    if missing and os.environ.get("CI"):
        sys.stderr.write(
            "CI is set, so no test may be skipped, and these packages are missing: {0}; install "
            "them (on Debian or Ubuntu, as root: {1} {0})\n".format(" ".join(missing), INSTALL)
        )
        return 1
    return 0


def install(missing: "list[str]") -> None:
    # The tests start their own Prometheus. Debian would start one as a service, and where nothing
    # manages services a start that fails is a failed installation.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        for command in ["apt-get", "update"], [*INSTALL.split(), "--yes", *missing]:
            subprocess.run(command, check=False, env=environment)
    finally:
        if ours:
            policy.unlink()


if __name__ == "__main__":
    sys.exit(main())
