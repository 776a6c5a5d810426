"""The `antefix` command. Imports neither Ray, nor vLLM, nor torch: those are for processes of
their own, and --help has to come at once.
"""

from __future__ import annotations

import typer

from deployments.commands.backtest import backtest
from deployments.commands.calibrate import calibrate
from deployments.commands.chat import chat
from deployments.commands.config import config
from deployments.commands.down import down
from deployments.commands.env import env
from deployments.commands.evaluate import evaluate
from deployments.commands.grafana import grafana
from deployments.commands.k8s import k8s
from deployments.commands.logs import logs
from deployments.commands.plan import plan
from deployments.commands.quantize import quantize
from deployments.commands.slo import slo
from deployments.commands.status import status
from deployments.commands.tune_speculation import tune_speculation
from deployments.commands.up import up
from deployments.commands.verify import verify
from deployments.exit_codes import explained

app = typer.Typer(
    name="antefix",
    help="Serve large language models, each request where its first token comes soonest.",
    epilog=explained(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (up, down, status, logs, chat, env, verify, backtest, calibrate, quantize):
    app.command()(command)
app.command()(tune_speculation)
app.command()(plan)
app.command()(evaluate)
app.add_typer(config, name="config")
app.add_typer(grafana, name="grafana")
app.add_typer(k8s, name="k8s")
app.add_typer(slo, name="slo")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
