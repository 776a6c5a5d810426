"""`antefix plan`: recommend weights, GPUs and replicas for a model, a load and an SLO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from cli.common.duration import duration
from cli.common.exit_codes import ExitCode
from cli.common.output import CommandError, answering, is_data, note, print_data
from common.errors import Problem

if TYPE_CHECKING:
    from weights.plan.drafting import Method
    from weights.plan.plan import Drafter, Plan

NOT_A_TERMINAL = 110  # columns


def plan(
    model: Annotated[
        str, typer.Argument(help="`embedded`, a Hugging Face id, or a folder with a config.json.")
    ],
    gpu: Annotated[
        str,
        typer.Option(
            help="GPU model, such as a100-80g, h100 or l4. An unknown name lists all of them."
        ),
    ],
    context_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Length of the longest request, prompt and answer, in tokens [required]."
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Mean length of a prompt, in tokens; default: context minus answer."
        ),
    ] = None,
    long_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Length that 1% of the prompts exceed, in tokens; default: --prompt-tokens."
        ),
    ] = None,
    answer_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Mean length of an answer, in tokens; default: context minus prompt, or an eighth"
            " of context without --prompt-tokens.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Mean number of concurrent requests; required without --rate."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Mean number of requests per second; required without --concurrency."
        ),
    ] = None,
    slo: Annotated[
        str,
        typer.Option(
            help="Objectives for the p99 time to first token and the time per output token."
        ),
    ] = "ttft=2s,tpot=100ms",
    draft: Annotated[
        str | None,
        typer.Option(
            help="Draft for speculative decoding: ngram_gpu, ngram, or the id or folder of a draft"
            " model or EAGLE-3 head; default: estimate with ngram_gpu, but leave it out of the"
            " fleet file."
        ),
    ] = None,
    drafts_accepted: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Assumed share of drafted tokens that are accepted; default: 0.4 for n-grams, 0.6"
            " for draft models and EAGLE-3 heads.",
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            help="Data type of the KV cache: auto (16 bits), fp8, int8_per_token_head or"
            " int4_per_token_head."
        ),
    ] = "auto",
    host_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Host memory of each replica for its KV cache, such as 64Gi; default: none.",
        ),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None,
        typer.Option(
            min=0, help="Price in any currency; default: the price in USD in May 2026, if known."
        ),
    ] = None,
    download: Annotated[
        bool,
        typer.Option(
            "--download",
            help="Download config.json from Hugging Face if it is not on this machine.",
        ),
    ] = False,
    output: Annotated[
        Literal["table", "json", "yaml", "fleet"],
        typer.Option("--output", "-o", help="Output format; fleet prints a fleet file."),
    ] = "table",
) -> None:
    """Recommend weights, GPUs and replicas for a load; estimate speed and cost."""
    with answering(output):
        from weights.model.cache_dtype import CACHE_DTYPES, PLANNED
        from weights.model.gpus import gpu_called
        from weights.model.model_shape import shape_of
        from weights.plan.plan import plan_for
        from weights.plan.plan_fleet import fleet_yaml
        from weights.plan.plan_text import as_json as object_of
        from weights.plan.sizing import SizingTarget
        from weights.quantize.cautions import four_bit_cautions

        # names first: with a wrong name, the other options do not matter
        kind, config = gpu_called(gpu), _config_of(model, download)
        if context_tokens is None:
            raise _usage(
                "--context-tokens is missing", "pass the length of the longest request, in tokens"
            )
        if concurrency is None and rate is None:
            raise _usage("no load was given", "pass --concurrency, --rate or both")
        if kv_cache_dtype not in PLANNED:
            remedy = f"use one of {', '.join(PLANNED)}"
            raise _usage(f"--kv-cache-dtype {kv_cache_dtype!r} is not known", remedy)
        ttft, tpot = _objectives(slo)
        answer = answer_tokens or max(
            1, context_tokens // 8 if prompt_tokens is None else context_tokens - prompt_tokens
        )
        price = kind.price_per_hour if price_per_gpu_hour is None else price_per_gpu_hour
        target = SizingTarget(
            context=context_tokens,
            prompt=prompt_tokens or max(1, context_tokens - answer),
            output=answer,
            ttft_s=ttft,
            tpot_s=tpot,
            concurrency=concurrency,
            rate=rate,
            cache=CACHE_DTYPES[kv_cache_dtype],
            price_per_gpu_hour=price,
            long_prompt=long_prompt_tokens,
            host_bytes=_bytes_of(host_bytes) if host_bytes is not None else 0,
        )
        drafter = _drafter(draft or "ngram_gpu", drafts_accepted, download)
        found = plan_for(shape_of(config), kind, target, drafter)
        if is_data(output):
            print_data({"model": model, **object_of(found)}, output)
        elif output == "fleet":
            typer.echo(fleet_yaml(found, model, speculates=draft is not None), nl=False)
        else:
            _show(found)
            if found.chosen.engine.precision.bits == 4:
                for caution in four_bit_cautions(model, found.shape.parameters):
                    note(caution)
            if prompt_tokens is not None and long_prompt_tokens is None:
                note(
                    "all prompts are assumed to have the mean length; --long-prompt-tokens "
                    "sets that of long ones"
                )
            if price_per_gpu_hour is None and price is not None:
                note("the price is in USD, as of May 2026; --price-per-gpu-hour sets another")
            note("a roofline estimate: docs/planning.md describes its error")


def _usage(message: str, remedy: str) -> CommandError:
    return CommandError(message, remedy, ExitCode.USAGE)


def _objectives(text: str) -> tuple[float, float | None]:
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = float(duration()(value.strip()))
        except typer.BadParameter:
            found = {}
            break
    if "ttft" not in found or found.keys() - {"ttft", "tpot"} or min(found.values()) <= 0:
        raise _usage(f"--slo {text!r} is not valid", "write it as ttft=2s,tpot=50ms")
    return found["ttft"], found.get("tpot")


def _bytes_of(size: str) -> int:
    from pydantic import ValidationError

    from deployments.fleet.settings.kv_tiers import KvTiers

    try:
        return int(KvTiers.model_validate({"host_bytes": size}).host_bytes)
    except ValidationError:
        raise _usage(f"--host-bytes {size!r} is not valid", "write it as 64Gi") from None


def _drafter(draft: str, accepted: float | None, download: bool) -> Drafter:
    from weights.model.model_shape import shape_of
    from weights.plan.plan import Drafter

    if draft in ("ngram", "ngram_gpu"):
        return Drafter(cast("Method", draft), accepted=accepted)
    config = _config_of(draft, download)
    shape = shape_of(config)
    is_head = shape.is_eagle3_head or "Eagle3" in shape.architecture
    return Drafter("eagle3" if is_head else "draft_model", draft, shape, accepted)


def _config_of(model: str, download: bool) -> dict[str, Any]:
    from deployments.models.model_config import model_config
    from weights.model.known_models import known_config, known_models

    config = model_config(model) or known_config(model)
    if config is None and download:
        config = model_config(model, download=True)
    if config is None:
        raise Problem(
            f"no config.json of {model!r} is on this machine",
            "name a folder that has one, add --download, or use one of "
            + ", ".join(known_models()),
        )
    return config


def _show(found: Plan) -> None:
    from rich.console import Console
    from rich.table import Table

    from weights.plan.plan_text import COLUMNS, lines, rows

    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == COLUMNS[0] else "right")
    for row in rows(found):
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = NOT_A_TERMINAL
    console.print(table)
    for line in lines(found):
        typer.echo(line)
