"""Common options of benchmarks."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.harness.results.rules import Rule


def parser_of(module: str, docstring: str | None) -> argparse.ArgumentParser:
    """Of `python -m benchmarks.<module>`, described by its docstring without the first line."""
    description = (docstring or "").partition("\n\n")[2]
    return argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description)


def add_write(parser: argparse.ArgumentParser, files: str) -> None:
    """`--write`: these `files` in docs/benchmarks are written."""
    parser.add_argument("--write", action="store_true", help=f"docs/benchmarks/{files}")


def add_seeds(parser: argparse.ArgumentParser, rule: Rule) -> None:
    """`--seeds`: by default those that the rule reports. `--tuning`: those to tune on."""
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        metavar="N",
        default=[*rule.reported],
        help="not those of goals.yaml",
    )
    parser.add_argument(
        "--tuning",
        dest="seeds",
        action="store_const",
        const=[*rule.tuning],
        help="the seeds that may be tuned on",
    )


def add_keep(parser: argparse.ArgumentParser) -> None:
    """`--keep`: the file of `kept_parts.KeptParts`."""
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="write measured parts to FILE, and resume from it",
    )


def add_fleet(parser: argparse.ArgumentParser) -> None:
    """`--fleet`, for `shape_only.with_shapes_only`."""
    parser.add_argument(
        "--fleet",
        type=Path,
        metavar="FILE",
        help="another fleet; with load_format: dummy, only the shape of a known model is needed",
    )
