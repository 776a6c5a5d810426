"""The server of trials without an engine: python -m tests.deployments.engine.vllm.trial_server

Takes the model's folder, the socket and the backend of its constraints as arguments. When the
server listens, writes one line: its process id, and the config that it is to be set up with, as a
pickle in hexadecimal. Ends with its stdin.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import psutil

from deployments.engine.vllm.arguments.args import parse
from deployments.engine.vllm.grammars import grammar_trial

if __name__ == "__main__":
    to_the_test = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    from vllm.engine.arg_utils import AsyncEngineArgs

    model, socket, backend = sys.argv[1:]
    engine_args = {
        "max_model_len": 4096,
        "enforce_eager": True,
        "structured_outputs_config": {"backend": backend},
    }
    args = parse(model, "model", engine_args)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    grammar_trial.begin(Path(socket))
    (server,) = psutil.Process().children()
    print(server.pid, pickle.dumps(config).hex(), file=to_the_test, flush=True)
    sys.stdin.read()
