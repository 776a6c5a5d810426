"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Output = Annotated[
    Literal["table", "json", "yaml"], typer.Option("--output", "-o", help="Output format.")
]
WideOutput = Annotated[
    Literal["table", "wide", "json", "yaml"],
    typer.Option("--output", "-o", help="Output format; wide adds columns."),
]
FleetFile = Annotated[
    str, typer.Argument(help="Path of a fleet file, or name of a built-in fleet.")
]
FleetUrl = Annotated[
    str | None,
    typer.Option(
        help="Base URL of a fleet, with or without /v1 at its end; default: the fleet on this"
        " machine."
    ),
]
ApiUrl = Annotated[
    str | None,
    typer.Option(
        help="Base URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1; default:"
        " the fleet on this machine, otherwise OPENAI_BASE_URL."
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="API key; default: that of the fleet on this machine, otherwise OPENAI_API_KEY. Other"
        " users can see this option in the process list, but not the default."
    ),
]
OperatorKey = Annotated[
    str | None,
    typer.Option(
        help="Operator's API key; default: that of the fleet on this machine, otherwise"
        " OPENAI_API_KEY. Other users can see this option in the process list, but not the default."
    ),
]
ModelName = Annotated[str | None, typer.Option(help="Model name; default: the API's first model.")]
PoolName = Annotated[str | None, typer.Option(help="Pool of the fleet; default: the first.")]
NoEngineArgs = Annotated[
    bool, typer.Option("--no-engine-args", help="Do not check engine_args with vLLM.")
]
Release = Annotated[
    str,
    typer.Argument(
        help="Name of the release; required if the namespace has several releases.",
        show_default=False,
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")]
Tail = Annotated[int, typer.Option(min=0, help="Number of lines to show.")]
RequestId = Annotated[
    str,
    typer.Option(
        metavar="ID",
        help="Show only lines about the request with this x-request-id, with all fields.",
    ),
]
RandomSeed = Annotated[int, typer.Option(help="Random seed.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Maximum length of an answer, in tokens.")]
OutputDir = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder to write to; created if missing.")
]
Overwrite = Annotated[
    bool, typer.Option("--force", help="Replace the output if it already exists.")
]
