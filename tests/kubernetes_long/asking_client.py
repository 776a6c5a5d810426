"""Asks a fleet's Service without end and writes how each request ended, a line of JSON each.

    python asking_client.py URL KEY MODEL CLIENTS EVERY_S > FILE

Runs in a pod of the cluster, with Python's own library alone. Two clients: one keeps its
connection as load balancers and SDKs do, and looks before each request whether it was closed
meanwhile; one makes a new connection each time, which the Service gives to any gateway. Every third
answer is long, so that what ends in the middle is seen. More CLIENTS
than two keep theirs too, and begin one EVERY_S seconds.
"""

import http.client
import json
import select
import sys
import threading
import time
import urllib.parse

URL, KEY, MODEL = sys.argv[1:4]
CLIENTS, EVERY_S = int(sys.argv[4]), float(sys.argv[5])
ONE_AT_A_TIME = threading.Lock()
PAUSE_S = 0.5
PATIENCE_S = 150.0
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
ADDRESS = urllib.parse.urlsplit(URL)


def ask(connection: http.client.HTTPConnection, number: int) -> dict[str, object]:
    """How it ended: `status` is 0 without an answer; `whole` says whether a 200 came to its end."""
    began = time.time()
    seen: dict[str, object] = {"began": began, "status": 0, "whole": False, "why": ""}
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 8 if number % 3 else 60,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": f"Tell me about the number {began}."}],
    }
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), HEADERS)
        answer = connection.getresponse()
        seen["status"] = answer.status
        seen["replica"] = answer.headers.get("x-antefix-replica", "")
        seen["model"] = answer.headers.get("x-antefix-model", "")
        last = b""
        while line := answer.readline():
            if line.startswith(b"data: "):
                seen.setdefault("ttft_s", time.time() - began)
            last = line if line.strip() and not line.startswith(b":") else last
        answer.read()  # readline() never finds the end of an answer of a known length
        seen["whole"] = answer.status == 200 and last.strip() == b"data: [DONE]"
        if not seen["whole"]:
            seen["why"] = last.decode()[:300]
    except (OSError, http.client.HTTPException) as error:
        seen["why"] = repr(error)
        connection.close()
    return seen | {"took_s": time.time() - began}


def was_closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side closed it while it was idle, as urllib3 looks."""
    return bool(connection.sock and select.select([connection.sock], [], [], 0)[0])


def client(name: str, keeps: bool) -> None:
    connection = http.client.HTTPConnection(ADDRESS.netloc, timeout=PATIENCE_S)
    number = 0
    while True:
        number += 1
        if not keeps or was_closed(connection):
            connection.close()
        line = json.dumps({"client": name} | ask(connection, number)) + "\n"
        with ONE_AT_A_TIME:
            sys.stdout.write(line)
            sys.stdout.flush()
        time.sleep(PAUSE_S)


threading.Thread(target=client, args=("keeps", True), daemon=True).start()
threading.Thread(target=client, args=("new", False), daemon=True).start()
for number in range(CLIENTS - 2):
    time.sleep(EVERY_S)
    threading.Thread(target=client, args=(f"more-{number}", True), daemon=True).start()
threading.Event().wait()
