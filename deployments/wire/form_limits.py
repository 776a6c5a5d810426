"""Limits of a form, which do not need its parser."""

from __future__ import annotations

# vLLM's server accepts up to 1,000 files and fields, of 1 MiB each: Starlette's defaults.
MAX_PARTS, MAX_FIELD_BYTES = 1_000, 2**20
