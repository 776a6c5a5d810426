"""The `antefix` command. It imports neither Ray nor vLLM nor torch, which run in separate
processes, so that --help is fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cli.adapters import adapters
from cli.backtest import backtest
from cli.bench import bench
from cli.calibrate import calibrate
from cli.canary import canary
from cli.chat import chat
from cli.command_line import CommandLine, version_line
from cli.config import config
from cli.doctor import doctor
from cli.down import down
from cli.env import env
from cli.evaluate import evaluate
from cli.exit_codes import explained
from cli.grafana import grafana
from cli.init import init
from cli.k8s import k8s
from cli.k8s_accept import accept
from cli.keys import keys
from cli.logs import logs
from cli.plan import plan
from cli.profile import profile
from cli.prove_resume import prove_resume
from cli.quality import quality
from cli.quantize import quantize
from cli.slo import slo
from cli.status import status
from cli.tune_speculation import tune_speculation
from cli.up import up
from cli.update import update
from cli.verify import verify

app = CommandLine(
    name="antefix",
    help="Serve large language models with vLLM, and route each request to the best replica.",
    epilog=explained(),
)
FLEET, KUBERNETES, MODELS = "Fleet", "Kubernetes", "Models"
LOAD, CONFIGURATION = "Load and simulation", "Configuration"
PANELS = {
    FLEET: (init, up, update, down, status, logs, chat, env, verify, doctor),
    MODELS: (plan, quantize, evaluate, tune_speculation, prove_resume),
    LOAD: (bench, calibrate, backtest, profile),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
k8s.command()(accept)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def before_any(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print Antefix's and other versions.",
        ),
    ] = False,
) -> None:
    pass


@app.command(hidden=True)
def version() -> None:
    """Print the version."""
    typer.echo(version_line())


app.add_typer(canary, name="canary", rich_help_panel=FLEET)
app.add_typer(adapters, name="adapters", rich_help_panel=FLEET)
app.add_typer(k8s, name="k8s", rich_help_panel=KUBERNETES)
app.add_typer(quality, name="quality", rich_help_panel=MODELS)
for name, group in (("config", config), ("keys", keys), ("slo", slo), ("grafana", grafana)):
    app.add_typer(group, name=name, rich_help_panel=CONFIGURATION)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
