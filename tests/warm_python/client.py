"""Run a program in a fork of the warm Python that listens on a socket.

    python -IS client.py SOCKET -m MODULE ARGUMENTS...
    python -IS client.py SOCKET -c CODE ARGUMENTS...

The fork has this process's stdin, stdout, stderr, environment and working directory. It is killed
with its children when this process ends, and this process returns its exit status.
"""

import array
import json
import os
import socket
import sys
from pathlib import Path


def main(path: str, how: str, program: str, *arguments: str) -> int:
    if how not in ("-m", "-c"):
        raise SystemExit(f"the warm Python takes -m or -c, not {how}")
    job = {
        "how": how,
        "program": program,
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        streams = array.array("i", [0, 1, 2])
        server.sendmsg([b"3"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        server.sendall(json.dumps(job).encode() + b"\n")
        for stream in (0, 1, 2):
            os.close(stream)
        return int(server.makefile().readline() or 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
