"""The embedded model's answer to the first question that `make up` asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from cli.common.gateway_client import FIRST_QUESTION

__all__ = ["FIRST_ANSWER", "FIRST_QUESTION", "Answer", "answers_to"]

FIRST_ANSWER = "The capital of Japan is Tokyo."


class Answer(NamedTuple):
    """`margins`: by how many nats each token is more likely than the next best."""

    text: str
    margins: list[float]


def answers_to(model: Path, question: str) -> dict[str, Answer]:
    """The model's greedy answer with each dtype."""
    # In a separate process, as pytest's would keep torch for the rest of the run.
    script = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
path, question = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(path)
assert tokenizer.encode("<|im_start|>") == [1]
chat = [{"role": "user", "content": question}]
ids = tokenizer.apply_chat_template(
    chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
answers = {}
for dtype in ("float32", "bfloat16"):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    out = model.generate(
        **ids, max_new_tokens=24, do_sample=False, temperature=None, top_p=None,
        return_dict_in_generate=True, output_logits=True,
    )
    best = [torch.log_softmax(step[0].float(), -1).topk(2).values for step in out.logits]
    tokens = out.sequences[0][ids["input_ids"].shape[1]:]
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    answers[dtype] = (text, [float(first - second) for first, second in best])
print(json.dumps(answers))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(model), question],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    return {dtype: Answer(*told) for dtype, told in json.loads(done.stdout).items()}
