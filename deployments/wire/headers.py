"""The headers, paths and codes between a gateway and a replica's own HTTP server.

    x-antefix-pass             opens this engine for this ticket: without it a replica answers 403
    x-antefix-ticket           which Ray Serve request, if any, holds a reservation for this one
    x-antefix-reserved         its reservation has been made
    x-antefix-expected-cached  how many of the prompt's tokens the gateway expects to be cached

What an engine says of a request it serves, on its way back:

    x-antefix-prompt-tokens    prompt tokens, as the engine counts them
    x-antefix-cached-tokens    those of them it found in its prefix cache
    x-antefix-engine-ttft      seconds from the request's arrival to its first token
    x-antefix-output-tokens    tokens it generated; a gateway's stream ends with a comment
                               that says so
    x-antefix-load             the replica's load at that moment (`router.load.LoadReport`)

A stream's headers wait for its first token, which is when these are known: no token is later
for it, and an engine that fails before its first token can still be replaced by another.
"""

from __future__ import annotations

TICKET_HEADER = "x-antefix-ticket"
PASS_HEADER = "x-antefix-pass"
RESERVED_HEADER = "x-antefix-reserved"
EXPECTED_CACHED_HEADER = "x-antefix-expected-cached"

PROMPT_TOKENS_HEADER = "x-antefix-prompt-tokens"
CACHED_TOKENS_HEADER = "x-antefix-cached-tokens"
ENGINE_TTFT_HEADER = "x-antefix-engine-ttft"
LOAD_HEADER = "x-antefix-load"
OUTPUT_TOKENS_HEADER = "x-antefix-output-tokens"
# A line that every reader of server-sent events skips, should it ever get to a client:
# https://html.spec.whatwg.org/multipage/server-sent-events.html
OUTPUT_TOKENS_COMMENT = b": antefix-output-tokens "

# 425 Too Early: never an engine's own answer.
NOT_RESERVED = 425

# Where a replica says how it turns requests into tokens (`deployments.prompt.facts`).
RENDERER_PATH = "/antefix/renderer"
