"""The server of trials without an engine: python -m tests.deployments.engine.vllm.trial_server

Takes the model's folder and the socket as arguments. When the server listens, writes one line: its
process id, and the config that it is to be set up with, as a pickle in hexadecimal. Ends with its
stdin.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import psutil

from deployments.engine.vllm import grammar_trial
from deployments.engine.vllm.args import parse

if __name__ == "__main__":
    to_the_test = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    from vllm.engine.arg_utils import AsyncEngineArgs

    model, socket = sys.argv[1:]
    args = parse(model, "model", {"max_model_len": 320, "enforce_eager": True})
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    grammar_trial.begin(Path(socket))
    (server,) = psutil.Process().children()
    print(server.pid, pickle.dumps(config).hex(), file=to_the_test, flush=True)
    sys.stdin.read()
