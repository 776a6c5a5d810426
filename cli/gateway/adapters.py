"""`antefix adapter`: LoRA adapters of a running fleet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common.command_line import CommandLine
from cli.common.gateway_client import GatewayClient
from cli.common.options import FleetUrl, OperatorKey, Output, WideOutput
from cli.common.output import answering, is_data, note, print_data, print_table
from cli.gateway.chat import where

adapters = CommandLine(help="Load, unload and list LoRA adapters of a running fleet.")

HEADINGS = ("name", "model", "rank", "size", "replicas")
WIDE_HEADINGS = ("digest", "source", "in memory of")

Name = Annotated[str, typer.Argument(help="Name of the adapter, which requests pass as `model`.")]
Source = Annotated[
    str,
    typer.Argument(
        help="A folder that the engines can read, a Hugging Face id (optionally with `@revision`), "
        "or the URL of an object store."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="Base model of the adapter; required if several pools serve adapters."),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace the weights of a loaded adapter.")
]


@adapters.command()
def load(
    name: Name,
    source: Source,
    model: Model = None,
    replace: Replace = False,
    base_url: FleetUrl = None,
    api_key: OperatorKey = None,
    output: Output = "table",
) -> None:
    """Load an adapter. When the command returns, every gateway serves it."""
    with answering(output):
        url, key, _ = where(base_url, api_key)
        # a folder here, for a fleet on this machine
        path = str(Path(source).expanduser().absolute()) if source[0] in ".~" else source
        fields = {"lora_name": name, "lora_path": path, "load_inplace": replace}
        fields |= {} if model is None else {"model": model}
        _print(GatewayClient(url, key).load_adapter(fields), output)


@adapters.command()
def unload(
    name: Name, base_url: FleetUrl = None, api_key: OperatorKey = None, output: Output = "table"
) -> None:
    """Unload an adapter. When the command returns, no gateway serves it."""
    with answering(output):
        url, key, _ = where(base_url, api_key)
        done = GatewayClient(url, key).unload_adapter(name)
        if is_data(output):
            print_data(done, output)
        else:
            typer.echo(f"{name} is unloaded")


@adapters.command("list")
def list_(
    base_url: FleetUrl = None, api_key: OperatorKey = None, output: WideOutput = "table"
) -> None:
    """List the adapters, and the replicas that have them in memory."""
    with answering(output):
        url, key, _ = where(base_url, api_key)
        _print(GatewayClient(url, key).adapters(), output)


def _print(found: dict[str, Any], output: str) -> None:
    if is_data(output):
        print_data(found, output)
        return
    if found:
        wide = output == "wide"
        rows = (_row(name, adapter, wide) for name, adapter in found.items())
        print_table(HEADINGS + WIDE_HEADINGS * wide, rows)
    else:
        note("no adapter is loaded")


def _row(name: str, adapter: Mapping[str, Any], wide: bool) -> tuple[str, ...]:
    """Return the cells of an adapter, as GET /antefix/adapters has it."""
    size = f"{adapter['bytes'] / 1e6:.1f} MB"
    replicas = adapter["replicas"]
    cells = (name, adapter["model"], str(adapter["rank"]), size, str(len(replicas)))
    more = (adapter["digest"], adapter["source"], ",".join(replicas) or "none")
    return cells + more if wide else cells
