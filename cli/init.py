"""`antefix init`: write a first fleet file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.named_model import check_model
from cli.output import answering, print_json
from cli.starter_fleet import write_starter
from common.machine import has_cpu_build


def init(
    model: Annotated[
        str, typer.Option(help="`embedded`, a Hugging Face id or a folder.")
    ] = "embedded",
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("fleet.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.")
    ] = False,
) -> None:
    """Write a fleet file for one model on this machine."""
    with answering(as_json):
        check_model(model)
        write_starter(model, has_cpu_build(), out, force)
        path = out if out.is_absolute() or len(out.parts) > 1 else Path(out)
        if as_json:
            print_json({"file": str(out.absolute()), "model": model})
            return
        shown = path if path.is_absolute() else f"./{out}"
        typer.echo(f"{out}\n\nNext: antefix config check {shown}, antefix up {shown}")
