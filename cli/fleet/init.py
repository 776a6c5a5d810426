"""`antefix init`: write a first fleet file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.common.named_model import check_model
from cli.common.options import Output, Overwrite
from cli.common.output import answering, is_data, print_data
from cli.fleet.starter_fleet import write_starter
from common.machine import has_cpu_build


def init(
    model: Annotated[
        str,
        typer.Argument(
            help="`embedded` (a small model that Antefix includes), a Hugging Face id or a folder."
        ),
    ] = "embedded",
    output_file: Annotated[Path, typer.Option(metavar="FILE", help="Fleet file to write.")] = Path(
        "fleet.yaml"
    ),
    force: Overwrite = False,
    output: Output = "table",
) -> None:
    """Write a fleet file for one model on this machine."""
    with answering(output):
        check_model(model)
        write_starter(model, has_cpu_build(), output_file, force)
        if is_data(output):
            print_data({"file": str(output_file.absolute()), "model": model}, output)
            return
        shown = output_file if output_file.is_absolute() else f"./{output_file}"
        typer.echo(f"{output_file}\n\nNext: antefix config check {shown}, antefix up {shown}")
