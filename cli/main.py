"""The `antefix` command. It imports neither Ray nor vLLM nor torch, which run in separate
processes, so that --help is fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cli.common.command_line import CommandLine, version_line
from cli.common.exit_codes import explained
from cli.fleet.config import config
from cli.fleet.doctor import doctor
from cli.fleet.down import down
from cli.fleet.env import env
from cli.fleet.init import init
from cli.fleet.logs import logs
from cli.fleet.status import status
from cli.fleet.up import up
from cli.fleet.update import update
from cli.gateway.adapters import adapters
from cli.gateway.bench import bench
from cli.gateway.calibrate import calibrate
from cli.gateway.canary import canary
from cli.gateway.chat import chat
from cli.gateway.profile import profile
from cli.gateway.verify import verify
from cli.kubernetes.k8s import k8s
from cli.kubernetes.k8s_accept import accept
from cli.kubernetes.k8s_key import key as k8s_key
from cli.kubernetes.k8s_logs import logs as k8s_logs
from cli.models.evaluate import evaluate
from cli.models.plan import plan
from cli.models.prove_resume import prove_resume
from cli.models.quality import quality
from cli.models.quantize import quantize
from cli.models.tune_speculation import tune_speculation
from cli.operators.backtest import backtest
from cli.operators.grafana import grafana
from cli.operators.keys import keys
from cli.operators.slo import slo

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
k8s.command("logs")(k8s_logs)
k8s.command("key")(k8s_key)


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
            help="Print the versions of Antefix, Python, Ray and vLLM.",
        ),
    ] = False,
) -> None:
    pass


@app.command(hidden=True)
def version() -> None:
    """Print the versions of Antefix, Python, Ray and vLLM."""
    typer.echo(version_line())


app.add_typer(canary, name="canary", rich_help_panel=FLEET)
app.add_typer(adapters, name="adapter", rich_help_panel=FLEET)
app.add_typer(k8s, name="k8s", rich_help_panel=KUBERNETES)
app.add_typer(quality, name="quality", rich_help_panel=MODELS)
for name, group in (("config", config), ("key", keys), ("slo", slo), ("grafana", grafana)):
    app.add_typer(group, name=name, rich_help_panel=CONFIGURATION)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
