"""Quantize one model with llm-compressor, in a separate process with its packages first in the
path:

    python -m weights.quantize.quantizing FOLDER

    FOLDER/job.json   a QuantizeJob
    FOLDER/layers/    each finished decoder layer, so that the next run resumes there
    FOLDER/model/     the model for vLLM, complete once this process has exited with 0

It prints `<fraction> <step>` lines on standard output. Before it fails for a reason that users can
fix, it prints `error <JSON of message and remedy>`.
"""

import datetime
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import torch
from compressed_tensors.offload import disable_offloading, set_onload_device
from compressed_tensors.offload import update_offload_parameter as update
from compressed_tensors.quantization.utils import is_module_quantized
from compressed_tensors.utils import match_named_modules
from llmcompressor import oneshot
from llmcompressor.core import LifecycleCallbacks
from llmcompressor.modifiers import Modifier
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.modifiers.utils.hooks import HooksMixin
from llmcompressor.pipelines.cache import IntermediatesCache
from llmcompressor.pipelines.registry import CalibrationPipeline
from llmcompressor.pipelines.sequential.helpers import Subgraph, trace_subgraphs
from llmcompressor.utils.dev import get_main_device
from llmcompressor.utils.helpers import DisableQuantization, calibration_forward_context
from llmcompressor.utils.pytorch.module import infer_sequential_targets
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from common.errors import Problem
from weights.model.schemes import NOT_QUANTIZED, Scheme, fitting_group, scheme_called
from weights.quantize.calibration_data import Sample, read_samples, token_windows
from weights.quantize.method_options import SYMMETRIC, OptionValue, defaults_of
from weights.quantize.quantize_job import QuantizeJob

LOADED = 0.1
CALIBRATED = 0.95
WINDOWS_AT_ONCE = 8
FACTS = "antefix-quantization.json"


class QuantizingProgress:
    def __init__(self, lines: TextIO) -> None:
        self._lines = lines

    def say(self, fraction: float, what: str) -> None:
        # If the parent is dead, the broken pipe ends this process, which is no longer needed.
        print(f"{fraction:.4f} {what}", file=self._lines, flush=True)

    def fail(self, error: Problem) -> None:
        told = json.dumps({"message": error.message, "remedy": error.remedy})
        print(f"error {told}", file=self._lines, flush=True)


def quantize(folder: Path, progress: QuantizingProgress) -> None:
    job = QuantizeJob.from_json((folder / "job.json").read_text())
    scheme = scheme_called(job.scheme)
    options = {**defaults_of(scheme), **job.options}
    scheme = replace(scheme, symmetric=bool(options.get(SYMMETRIC, scheme.symmetric)))
    progress.say(0.02, "reading the model's configuration")
    group_size = _group_size(job, scheme)
    progress.say(0.03, "reading the tokenizer")
    where = _where(job)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    windows = _windows(job, tokenizer) if scheme.needs_calibration else []
    progress.say(0.04, "loading the weights")
    model, kept_in = _load(job, folder, calibrating=scheme.needs_calibration)
    calibration = DataLoader(
        [{"input_ids": torch.tensor(window)} for window in windows],
        batch_size=WINDOWS_AT_ONCE,
    )
    ResumableCalibration.folder = folder / "layers"
    ResumableCalibration.progress = progress
    if not torch.accelerator.is_available():
        # Pinned memory is for copies to an accelerator; without one, a request for it fails.
        IntermediatesCache.pin_memory = lambda *_: None
    progress.say(LOADED, "quantizing")
    oneshot(
        model=model,
        tokenizer=tokenizer,
        recipe=_recipe(scheme, group_size, options),
        dataset=calibration if windows else None,
        pipeline="resumable" if windows else "datafree",
    )
    progress.say(CALIBRATED, "writing the model")
    if model.dtype != kept_in:
        model = model.to(kept_in)
    _write(model, tokenizer, folder / "model", _facts(job, group_size, options, windows))
    progress.say(1.0, "written")


def _where(job: QuantizeJob) -> dict[str, Any]:
    if job.gguf:
        source = Path(job.source)
        return {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    revision = {"revision": job.revision} if job.revision else {}
    return {"pretrained_model_name_or_path": job.source, **revision}


def _group_size(job: QuantizeJob, scheme: Scheme) -> int | None:
    """Return the group size from the model without weights, so that an unsuitable one is reported
    at once."""
    config = AutoConfig.from_pretrained(**_where(job))
    already = getattr(config, "quantization_config", None)
    if already and not job.gguf:
        raise Problem(f"{job.source} is already quantized", "quantize the model it was made from")
    if not scheme.grouped:
        return None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    inputs = {
        name: module.in_features
        for name, module in match_named_modules(model, ["Linear"], NOT_QUANTIZED)
    }
    return fitting_group(inputs, job.group_size, job.tensor_parallel)


def _windows(job: QuantizeJob, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    assert job.calibration is not None, "the command asks for one"
    samples = read_samples(Path(job.calibration))
    if not tokenizer.chat_template and any(isinstance(sample, list) for sample in samples):
        raise Problem(
            f"{job.calibration} contains conversations, but the model has no chat template",
            "use plain text",
        )

    def encode(sample: Sample) -> list[int]:
        if isinstance(sample, list):
            text = tokenizer.apply_chat_template(
                sample, tokenize=False, add_generation_prompt=sample[-1]["role"] == "user"
            )
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(tokenizer(sample)["input_ids"])

    return token_windows(samples, encode, job.samples, job.sample_tokens)


def _load(job: QuantizeJob, folder: Path, calibrating: bool) -> tuple[PreTrainedModel, torch.dtype]:
    """Return the model, and the number format in which it is written."""
    how: dict[str, Any] = {"dtype": "auto"}
    if job.gguf:
        how = {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.bfloat16}
    model = AutoModelForCausalLM.from_pretrained(**_where(job), **how)
    if job.gguf:
        # llm-compressor looks for the configuration next to the weights, where a GGUF has none.
        model.config.save_pretrained(folder / "config")
        model.config._name_or_path = str(folder / "config")
        model.generation_config = GenerationConfig.from_model_config(model.config)
    kept_in = model.dtype
    if calibrating and not torch.cuda.is_available():
        # Most CPUs compute bfloat16 several times slower; float32 can represent all its values.
        model = model.float()
    return model, kept_in


def _recipe(
    scheme: Scheme, group_size: int | None, options: Mapping[str, OptionValue]
) -> list[Modifier]:
    quantized = {
        "config_groups": {"group_0": scheme.arguments(group_size)},
        "ignore": list(NOT_QUANTIZED),
    }
    match scheme.method:
        case "gptq":
            # GPTQ orders by default; None disables it
            order: dict[str, Any] = {} if options["act_order"] else {"actorder": None}
            return [GPTQModifier(dampening_frac=options["damp"], **order, **quantized)]
        case "awq":
            return [AWQModifier(n_grid=options["grid"]), QuantizationModifier(**quantized)]
        case "smoothquant":
            smooth = SmoothQuantModifier(smoothing_strength=options["smoothing"])
            return [smooth, QuantizationModifier(**quantized)]
        case "round":
            return [QuantizationModifier(**quantized)]


@CalibrationPipeline.register("resumable")
class ResumableCalibration(CalibrationPipeline):  # type: ignore[misc]
    """Calibrate one decoder layer after the other.

    The modifiers see its inputs and change its weights. The outputs of the changed layer are the
    inputs of the next. A finished layer is stored on the disk. A later run loads it and only
    computes its outputs, which equal those of an uninterrupted run, bit for bit.
    """

    folder: Path
    progress: QuantizingProgress

    def __call__(self, model: Any, dataloader: Any, dataset_args: Any) -> None:
        device = get_main_device()
        set_onload_device(model, device)
        targets = infer_sequential_targets(model, None)
        parts = trace_subgraphs(model, next(iter(dataloader)), targets, dataset_args.tracing_ignore)
        self.folder.mkdir(exist_ok=True)
        LifecycleCallbacks.calibration_start()
        with calibration_forward_context(model), DisableQuantization(model):
            states = IntermediatesCache.from_dataloader(dataloader, device, torch.device("cpu"))
            for index, part in enumerate(parts):
                # The first part is the embeddings, before any layer.
                self.progress.say(
                    LOADED + (CALIBRATED - LOADED) * index / len(parts),
                    f"calibrating layer {max(index, 1)} of {len(parts) - 1}",
                )
                # Keeps data on the GPU until the layer is done.
                with disable_offloading():
                    self._one(model, part, states, index, last=part is parts[-1])
        LifecycleCallbacks.calibration_end()

    def _one(
        self, model: Any, part: Subgraph, states: IntermediatesCache, index: int, last: bool
    ) -> None:
        kept = self.folder / f"{index:04}.safetensors"
        if kept.exists():
            _restore(model, kept)
        else:
            for batch in range(len(states)):
                part.forward(model, **states.fetch(batch, part.input_names))
            LifecycleCallbacks.sequential_epoch_end(part.submodules(model))
            _keep(model, part, kept)
        if last:
            return
        with HooksMixin.disable_hooks():
            for batch in range(len(states)):
                outputs = part.forward(model, **states.fetch(batch, part.input_names))
                states.update(batch, outputs)
                states.delete(batch, part.consumed_names)


def _keep(model: Any, part: Subgraph, file: Path) -> None:
    """Write what the modifiers may have changed; the file gets its name when it is complete."""
    modules = part.submodules(model)
    if not any(is_module_quantized(module) for module in modules):
        return
    names = {module: name for name, module in model.named_modules()}
    untouched = (model.get_input_embeddings(), model.get_output_embeddings())
    tensors = {
        f"{names[module]}.{key}": parameter.detach().cpu().contiguous()
        for module in modules
        if module not in untouched
        for key, parameter in module.named_parameters(recurse=False)
    }
    half = file.with_suffix(".half")
    save_file(tensors, half)
    _flush(half)
    half.rename(file)


def _restore(model: Any, file: Path) -> None:
    for name, tensor in load_file(file).items():
        module, _, key = name.rpartition(".")
        update(model.get_submodule(module), key, tensor)


def _write(
    model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path, facts: dict[str, Any]
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, save_compressed=True)
    tokenizer.save_pretrained(folder)
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    for file in folder.iterdir():
        # safetensors makes files private to its user; an engine may run as another user.
        file.chmod(0o644)
        _flush(file)
    _flush(folder)


def _facts(
    job: QuantizeJob,
    group_size: int | None,
    options: Mapping[str, OptionValue],
    windows: list[list[int]],
) -> dict[str, Any]:
    calibration = None
    if windows:
        assert job.calibration is not None
        text = Path(job.calibration)
        calibration = {
            "file": text.name,
            "sha256": hashlib.sha256(text.read_bytes()).hexdigest(),
            "windows": len(windows),
            "tokens": sum(map(len, windows)),
        }
    packages = ("llmcompressor", "compressed-tensors", "torch", "transformers")
    return {
        "model": Path(job.source).name if job.local else job.source,
        "revision": job.revision,
        "scheme": job.scheme,
        "group_size": group_size,
        "options": options,
        "tensor_parallel": job.tensor_parallel,
        "calibration": calibration,
        "made_with": {package: version(package) for package in packages},
        "made_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    # llm-compressor logs to standard output, which is reserved for the progress here.
    progress = QuantizingProgress(os.fdopen(os.dup(sys.stdout.fileno()), "w"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        quantize(Path(arguments[0]), progress)
    except Problem as error:
        progress.fail(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
