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
        str, typer.Argument(help="`embedded`, a Hugging Face id or a folder.")
    ] = "embedded",
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("fleet.yaml"),
    force: Overwrite = False,
    output: Output = "table",
) -> None:
    """Write a fleet file for one model on this machine."""
    with answering(output):
        check_model(model)
        write_starter(model, has_cpu_build(), out, force)
        path = out if out.is_absolute() or len(out.parts) > 1 else Path(out)
        if is_data(output):
            print_data({"file": str(out.absolute()), "model": model}, output)
            return
        shown = path if path.is_absolute() else f"./{out}"
        typer.echo(f"{out}\n\nNext: antefix config check {shown}, antefix up {shown}")
