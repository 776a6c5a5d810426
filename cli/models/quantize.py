"""`antefix quantize`: reduce a model's weights to fewer bits, in a form that vLLM serves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from cli.common.exit_codes import ExitCode
from cli.common.named_model import check_model
from cli.common.options import Output, Overwrite
from cli.common.output import CommandError, answering, is_data, note, print_data
from cli.common.progress import Steps
from cli.local.overlay_packages import quantizer_packages
from cli.local.quantizer import quantize as run
from common.errors import Problem
from deployments.models.model import EMBEDDED, resolve_model
from weights.model.model_shape import shape_of
from weights.model.schemes import SCHEMES, Scheme, scheme_called
from weights.quantize.calibration_data import read_samples
from weights.quantize.cautions import four_bit_cautions
from weights.quantize.method_options import OptionValue, defaults_of, options_of
from weights.quantize.quantize_job import QuantizeJob

SAMPLES = 64
SAMPLE_TOKENS = 512


def quantize(
    model: Annotated[
        str,
        typer.Argument(help="`embedded`, a Hugging Face id, a model folder or a GGUF file."),
    ] = "",
    scheme: Annotated[str, typer.Option(help=f"One of {', '.join(SCHEMES)}.")] = "awq",
    output_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder to write; default: MODEL-SCHEME next to the model.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Texts like your users' requests: .txt, or .jsonl with text, prompt, messages or "
            "turns. Required by awq, gptq and w8a8-smoothquant."
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Maximum number of windows of the calibration text.")
    ] = SAMPLES,
    sample_tokens: Annotated[
        int, typer.Option(min=64, help="Length of a calibration window, in tokens.")
    ] = SAMPLE_TOKENS,
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Weights that share a scale; default: the largest of 128, 64, 32 and 16 that fits."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Option of the scheme, such as smoothing=0.85; repeatable. --list shows all.",
        ),
    ] = None,
    tensor_parallel: Annotated[
        int,
        typer.Option(
            min=1, help="GPUs per replica. Groups must divide each GPU's share of the weights."
        ),
    ] = 1,
    revision: Annotated[
        str | None, typer.Option(help="Revision of a Hugging Face model; default: the newest.")
    ] = None,
    force: Overwrite = False,
    list_schemes: Annotated[
        bool, typer.Option("--list", help="List the schemes and their uses.")
    ] = False,
    output: Output = "table",
) -> None:
    """Quantize a model. Repeat the command to resume after an interruption."""
    with answering(output):
        if list_schemes:
            _list(output)
            return
        if not model:
            raise CommandError("no model was given", "antefix quantize MODEL", ExitCode.USAGE)
        check_model(model, revision)
        chosen, options = _checked(scheme, calibration, group_size, settings or [])
        began = time.monotonic()
        with Steps() as steps:
            with steps.step("model") as step:
                source = resolve_model(model, step.show)
                if Path(source).exists():
                    source = str(Path(source).absolute())
            target = _target(model, source, chosen, output_dir)
            with steps.step("llm-compressor") as step:
                packages = quantizer_packages(step.show)
            text = calibration if chosen.needs_calibration else None
            job = QuantizeJob(
                source=source,
                revision=revision,
                scheme=chosen.name,
                group_size=group_size,
                tensor_parallel=tensor_parallel,
                calibration=str(text.absolute()) if text else None,
                samples=samples,
                sample_tokens=sample_tokens,
                options=options,
            )
            with steps.step(chosen.name) as step:
                run(job, target, packages, step.show, note, replace=force)
        facts = json.loads((target / "antefix-quantization.json").read_text())
        written = sum(file.stat().st_size for file in target.glob("*.safetensors"))
        answer = {**facts, "folder": str(target), "bytes": written}
        answer["seconds"] = round(time.monotonic() - began, 1)
        if is_data(output):
            print_data(answer, output)
            return
        typer.echo(f"{target}: {written / 1e6:,.1f} MB of weights{_grouped(facts['group_size'])}")
        of = EMBEDDED if model == EMBEDDED else source
        if chosen.weight_bits == 4:
            shape = shape_of(json.loads((target / "config.json").read_text()))
            for caution in four_bit_cautions(model, shape.parameters):
                note(caution)
        note(f"to measure the loss of quality: antefix evaluate {of} {target}")


def _checked(
    name: str, calibration: Path | None, group_size: int | None, settings: list[str]
) -> tuple[Scheme, dict[str, OptionValue]]:
    """Check the command line before anything is loaded. Raises for its first fault."""
    try:
        scheme = scheme_called(name)
        if scheme.needs_calibration:
            if calibration is None:
                raise Problem(
                    f"{name} needs a text to calibrate with",
                    "pass one like your users' requests with --calibration, or use rtn, w8a16, "
                    "w8a8 or fp8, which need none",
                )
            read_samples(calibration)
        if group_size is not None and not scheme.grouped:
            raise Problem(f"{name} has no groups", "remove --group-size")
        options = options_of(scheme, settings)
    except Problem as error:
        raise CommandError(error.message, error.remedy, ExitCode.USAGE) from error
    return scheme, options


def _target(model: str, source: str, scheme: Scheme, out: Path | None) -> Path:
    """Return the output folder: the given one, otherwise next to the user's model, or the current
    folder."""
    if out is None:
        if model == EMBEDDED or not Path(source).exists():
            out = Path(f"{model.rpartition('/')[2]}-{scheme.name}")
        else:
            out = Path(source.removesuffix(".gguf") + f"-{scheme.name}")
    if out.absolute() == Path(source):
        raise CommandError(
            f"{out} is the model itself", "choose another folder with --output-dir", ExitCode.USAGE
        )
    return out.absolute()


def _grouped(group_size: int | None) -> str:
    return f", groups of {group_size}" if group_size else ""


def _list(output: str) -> None:
    rows = {
        s.name: {
            "weight_bits": s.weight_bits,
            "activation_bits": s.activation_bits,
            "calibration": s.needs_calibration,
            "options": defaults_of(s),
            "for": s.meant_for,
            "served_by": s.served_by,
        }
        for s in SCHEMES.values()
    }
    if is_data(output):
        print_data({"schemes": rows}, output)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("SCHEME", "BITS", "CALIBRATION", "--set", "FOR", "SERVED BY", box=None)
    for scheme in SCHEMES.values():
        table.add_row(
            scheme.name,
            f"{scheme.weight_bits}/{scheme.activation_bits}",
            "needed" if scheme.needs_calibration else "",
            " ".join(f"{name}={json.dumps(value)}" for name, value in defaults_of(scheme).items()),
            scheme.meant_for,
            scheme.served_by,
        )
    Console().print(table)
