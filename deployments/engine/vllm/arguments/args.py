"""Engine arguments under vLLM's own parser.

vLLM is imported only inside functions: `to_cli` does not need it.

    python -m deployments.engine.vllm.arguments.args  reads {pool: engine_args}, writes every fault

Neither a GPU nor a model is needed. The start of the engine checks what depends on the model's
config.
"""

import argparse
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, NoReturn

from pydantic import TypeAdapter, ValidationError

from common.section import did_you_mean, out_of_bounds
from deployments.engine.vllm.arguments.flag_complaints import (
    misfit,
    not_one_of,
    one_line,
    plain_words,
)
from deployments.engine.vllm.arguments.speculative_args import (
    SpeculativeRefusal,
    broken_speculative_config,
)


class RefusedArg(NamedTuple):
    """An engine argument that vLLM rejects. `key` is empty for several together."""

    key: str
    value: Any
    message: str
    remedy: str


class EngineArgsRefused(ValueError):
    """vLLM rejects these arguments; `refused` lists them with reasons."""

    def __init__(self, refused: list[RefusedArg]) -> None:
        self.refused = refused
        lines = (f"engine_args.{each.key}: {each.message}. {each.remedy}" for each in refused)
        super().__init__("\n".join(lines))


class _ParserSaid(Exception):
    """The message with which argparse would have exited."""


def to_cli(engine_args: Mapping[str, Any]) -> list[str]:
    """Return `engine_args` as a command line: true and false are --flag and --no-flag, a mapping is
    JSON, a list is repeated values, null and an empty list are omitted."""
    words: list[str] = []
    for key, value in engine_args.items():
        flag = "--" + key.replace("_", "-")
        if value is None or value == []:
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list):
            words += [flag, *map(_word, value)]
        else:
            # --flag=value, so that a value may start with - and a flag without a value refuses one
            words.append(f"{flag}={_word(value)}")
    return words


def parse(model: str, served_model_name: str, engine_args: Mapping[str, Any]) -> argparse.Namespace:
    """Return the arguments for vLLM's server. Raises `EngineArgsRefused` with every fault."""
    refused = list(refusals(engine_args))
    if refused:
        raise EngineArgsRefused(refused)
    named = {"model": model, "served_model_name": [served_model_name]}
    words = to_cli({**_without_idle_flags(engine_args), **named})
    args: argparse.Namespace = _parser().parse_args(words)
    # in its developer mode, vLLM would log refused requests, and prompts with them
    args.log_error_stack = bool(engine_args.get("log_error_stack"))
    return args


def with_own_seed(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, with a random `seed` if they have none.

    vLLM seeds every engine with 0: replicas then draw the same numbers, and a client that samples
    one prompt several times gets each answer once from every replica. Dummy weights depend on the
    seed as well, and must be the same on all replicas.
    """
    load_format = engine_args.get("load_format", engine_args.get("load-format"))
    if engine_args.get("seed") is not None or load_format == "dummy":
        return dict(engine_args)
    return {**engine_args, "seed": secrets.randbelow(2**32)}


def with_folders(engine_args: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments, with the draft model's folder instead of its id if `folders` has it."""
    found = dict(engine_args)
    for key in ("speculative_config", "speculative-config"):
        config = found.get(key)
        if isinstance(config, Mapping) and config.get("model") in folders:
            found[key] = {**config, "model": folders[config["model"]]}
    return found


def refusals(engine_args: Mapping[str, Any]) -> Iterator[RefusedArg]:
    """Yield everything that vLLM rejects: each argument separately, then, if all pass, all
    together."""
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    given = {key.replace("-", "_"): value for key, value in engine_args.items()}
    given = {key: value for key, value in given.items() if value is not None}
    any_refused = False
    for key, value in given.items():
        for refused in _refused_alone(key, value):
            any_refused = True
            yield refused
    if any_refused:
        return
    args = None
    try:
        args = _parser().parse_args(to_cli(_without_idle_flags(given)))
        validate_parsed_serve_args(args)
    except (_ParserSaid, ValueError, TypeError, KeyError) as error:
        yield _refused_together(str(error.args[0] if error.args else error), given)
    if args is None:
        return
    yield from _broken_speculation(args, given)
    if args.lora_modules and not args.enable_lora:
        yield RefusedArg("lora_modules", None, "LoRA is switched off", "Add enable_lora: true")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@cache
def _parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def raise_said(message: str) -> NoReturn:
        raise _ParserSaid(message)

    parser = make_arg_parser(FlexibleArgumentParser(add_help=False, allow_abbrev=False))
    parser.error = raise_said
    return parser


@cache
def _flags() -> dict[str, argparse.Action]:
    """Return every long flag of vLLM by its name with underscores, without the --no- forms."""
    return {
        option[2:].replace("-", "_"): action
        for action in _parser()._actions
        for option in action.option_strings
        if option.startswith("--")
        and not (isinstance(action, argparse.BooleanOptionalAction) and option.startswith("--no-"))
    }


def _without_idle_flags(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without `flag: false` if vLLM has no --no-flag: there, absence means
    false."""
    on_only = argparse._StoreTrueAction
    return {
        key: value
        for key, value in engine_args.items()
        if value is not False or not isinstance(_flags().get(key.replace("-", "_")), on_only)
    }


def _refused_alone(key: str, value: Any) -> Iterator[RefusedArg]:
    action = _flags().get(key)
    if action is None:
        # without the value: under a mistyped key it may be a secret
        yield RefusedArg(key, None, "vLLM has no such flag", _remedy_for_unknown(key, value))
        return
    unfit = misfit(action, value)
    if unfit is not None:
        yield RefusedArg(key, value, *unfit)
        return
    try:
        words = to_cli(_without_idle_flags({key: value}))
        parsed = getattr(_parser().parse_args(words), action.dest)
    except (_ParserSaid, ValueError, TypeError, KeyError) as error:
        yield RefusedArg(key, value, *plain_words(action, value, str(error)))
        return
    yield from _outside_bounds(key, value, action.dest, parsed)
    yield from _unknown_name(key, value)


def _remedy_for_unknown(key: str, value: Any) -> str:
    positive = key.removeprefix("no_")
    if positive != key and positive in _flags():
        return f"Write {positive}: {'false' if value is True else 'true'}"
    root, dot, _ = key.partition(".")
    if dot and root in _flags():
        return f"Write {root} with the rest as a mapping below it"
    return did_you_mean(key, _flags()) or "See vllm serve --help=all for the flags"


def _outside_bounds(key: str, value: Any, field: str, parsed: Any) -> Iterator[RefusedArg]:
    """Yield values outside the bounds that vLLM's config classes set, and its parser does not
    know."""
    if isinstance(parsed, bool) or not isinstance(parsed, int | float):
        return
    from vllm import config

    sections = (
        config.ModelConfig,
        config.CacheConfig,
        config.ParallelConfig,
        config.SchedulerConfig,
        config.LoRAConfig,
        config.LoadConfig,
        config.ObservabilityConfig,
    )
    for section in sections:
        info = section.__pydantic_fields__.get(field)
        if info is None or not info.metadata:
            continue
        try:
            bounded: Any = Annotated[type(parsed), *info.metadata]
            TypeAdapter(bounded).validate_python(parsed)
        except ValidationError as error:
            details = error.errors()[0]
            words = out_of_bounds(details) or (details["msg"], "See vllm serve --help=all")
            yield RefusedArg(key, value, *words)
        return


def _unknown_name(key: str, value: Any) -> Iterator[RefusedArg]:
    """Yield names that the parser accepts, because a plug-in may add to them."""
    if key == "quantization":
        from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

        known = QUANTIZATION_METHODS
    elif key == "tool_call_parser":
        from vllm.tool_parsers import ToolParserManager

        known = ToolParserManager.list_registered()
    elif key == "reasoning_parser":
        from vllm.reasoning import ReasoningParserManager

        known = ReasoningParserManager.list_registered()
    else:
        return
    if value not in known:
        yield RefusedArg(key, value, *not_one_of(list(known), value))


def _refused_together(said: str, engine_args: Mapping[str, Any]) -> RefusedArg:
    """Return the fault of a combination, at the first argument that vLLM names."""
    said = one_line(said.removeprefix("Error: "))
    named = [flag.replace("-", "_") for flag in re.findall(r"--([a-z0-9-]+)", said)]
    key = next((name for name in named if name in engine_args), "")
    return RefusedArg(key, engine_args.get(key), said, "Change one of them")


def _broken_speculation(
    args: argparse.Namespace, engine_args: Mapping[str, Any]
) -> Iterator[RefusedArg]:
    from vllm.config import SpeculativeConfig
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    if args.speculative_config is None:
        return
    broken: Iterator[SpeculativeRefusal] = broken_speculative_config(
        args.speculative_config,
        SpeculativeConfig.__pydantic_fields__,
        tensor_parallel=args.tensor_parallel_size,
        quantizations=QUANTIZATION_METHODS,
        beside=engine_args,
    )
    for inner, value, message, remedy in broken:
        key = f"speculative_config.{inner}" if inner else "speculative_config"
        yield RefusedArg(key, value, message, remedy)


def main() -> None:
    """stdin: {pool: engine_args}. stdout: a list of faults, each with its pool."""
    # vLLM logs to stdout, which is reserved for the answer
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    refused = [
        {"pool": pool, **refusal._asdict()}
        for pool, engine_args in json.load(sys.stdin).items()
        for refusal in refusals(engine_args)
    ]
    with answer:
        json.dump(refused, answer)


if __name__ == "__main__":
    main()
