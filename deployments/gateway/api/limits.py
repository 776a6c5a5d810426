"""Limits of gateways that descriptions of the API name."""

from __future__ import annotations

# Strings, arrays and objects of one body, names of fields included. Each takes up to 200 bytes of
# memory, here and again in the engine.
MAX_VALUES = 100_000
# Items of arrays and objects. A list of tokens has many.
MAX_ITEMS = 1_000_000
# Seconds for which gateways refuse a request that engines were lost with. A pool needs this time to
# restart its engines.
FATAL_REQUEST_S = 180
# The minimum lifetime of an explanation.
EXPLANATION_TTL_S = 120
# A request that takes more seconds is explained before its end, and again each minute.
UNDER_WAY_S = 5.0
# The decisions that a list keeps.
DECISIONS = 100
