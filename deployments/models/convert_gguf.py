"""Convert a GGUF file into the folder of a Hugging Face model, in bfloat16.

    python -m deployments.models.convert_gguf SOURCE.gguf FOLDER

It runs in a separate process, because it imports torch and uses a gigabyte. It prints `<fraction>
<step>` lines on standard output. The folder contains weights, configuration, generation
configuration, tokenizer and chat template.
"""

import sys
from pathlib import Path


def convert(source: Path, folder: Path) -> None:
    _say(0.0, "loading PyTorch")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    _say(0.15, "reading the weights")
    model = AutoModelForCausalLM.from_pretrained(
        str(source.parent),
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    _say(0.75, "reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    if not tokenizer.chat_template:
        raise ValueError(f"{source.name} has no chat template, so it cannot serve chat")
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        # As its authors advise: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
        do_sample=True,
        temperature=0.2,
        top_p=0.9,
    )
    _say(0.97, "writing the model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _say(1.0, "written")


def _say(fraction: float, what: str) -> None:
    print(f"{fraction} {what}", flush=True)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
