"""`antefix adapters`: LoRA adapters of a running fleet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.canary import ApiKey, AsJson, BaseUrl
from cli.chat import where
from cli.command_line import CommandLine
from cli.gateway_client import GatewayClient
from cli.output import answering, print_json

adapters = CommandLine(help="Load, unload and list LoRA adapters of a running fleet.")

Name = Annotated[str, typer.Argument(help="Name of the adapter, which requests have in `model`.")]
Source = Annotated[
    str,
    typer.Argument(
        help="Folder that the engines can read, Hugging Face id (with `@revision` if need be), or "
        "URL of a store."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="Its base model; needed where several pools take adapters."),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace the weights of a loaded one.")]


@adapters.command()
def load(
    name: Name,
    source: Source,
    model: Model = None,
    replace: Replace = False,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Load an adapter: every gateway serves it when the command ends."""
    with answering(as_json):
        url, key, _ = where(base_url, api_key)
        # a folder here, for a fleet on this machine
        path = str(Path(source).expanduser().absolute()) if source[0] in ".~" else source
        fields = {"lora_name": name, "lora_path": path, "load_inplace": replace}
        fields |= {} if model is None else {"model": model}
        _print(GatewayClient(url, key).load_adapter(fields), as_json)


@adapters.command()
def unload(
    name: Name, base_url: BaseUrl = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Unload an adapter: no gateway serves it when the command ends."""
    with answering(as_json):
        url, key, _ = where(base_url, api_key)
        done = GatewayClient(url, key).unload_adapter(name)
        if as_json:
            print_json(done)
        else:
            typer.echo(f"{name} is unloaded")


@adapters.command("list")
def list_(base_url: BaseUrl = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """List the adapters, and the replicas that have them in memory."""
    with answering(as_json):
        url, key, _ = where(base_url, api_key)
        _print(GatewayClient(url, key).adapters(), as_json)


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for name, adapter in found.items():
        typer.echo(in_words(name, adapter))
    if not found:
        typer.echo("no adapter is loaded")


def in_words(name: str, adapter: Mapping[str, Any]) -> str:
    """One line for an adapter, as GET /antefix/adapters has it."""
    replicas = ", ".join(adapter["replicas"]) or "no replica"
    size = f"{adapter['bytes'] / 1e6:.1f} MB"
    return (
        f"{name}: {adapter['model']}, rank {adapter['rank']}, {size}, {adapter['digest']}, from "
        f"{adapter['source']}, in memory of {replicas}"
    )
