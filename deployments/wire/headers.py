"""The headers, paths and codes between a gateway and a replica's own HTTP server.

    x-antefix-pass             opens this engine for this ticket, or without one for this path:
                               without a pass a replica answers 403
    x-antefix-ticket           which Ray Serve request, if any, holds a reservation for this one
    x-antefix-unreserved       there is none: the replica is to count it for Ray Serve itself
    x-antefix-reserved         its reservation has been made; `if-room`: it will make another where
                               the replica is full even so
    x-antefix-expected-cached  how many of the prompt's tokens the gateway expects to be cached
    x-antefix-tenant           a digest of the tenant, for limits by tenant
    x-antefix-cache-salt       the salt of its cached prompt, where vLLM's API takes none

What an engine says of a request it serves, on its way back:

    x-antefix-prompt-tokens    prompt tokens, as the engine counts them
    x-antefix-cached-tokens    those of them it found in its prefix cache
    x-antefix-engine-ttft      seconds from the request's arrival to its first token
    x-antefix-output-tokens    tokens it generated; in a gateway's stream comments report how many
                               so far, before events and at the end
    x-antefix-finish-reason    why the answer ended, by vLLM's word: stop, length, ...; a stream's
                               last comment has it behind the number of tokens
    x-antefix-load             the replica's load at that moment (`router.load.LoadReport`)

The same three counts answer `GET /antefix/tokens?ticket=...` once an exchange has ended, for a
gateway that left it early (`deployments.engine.final_counts`).

An answer that another engine could go on with, should this one be lost:

    x-antefix-resumable        a gateway asks for one; on an answer: it is one, and each chunk's
                               tokens come before its events, in a comment that says so
    x-antefix-resume-mode      `continued`: nothing proves that the engine that goes on makes the
                               same tokens. Without this header it is proved

A stream that outlives its gateway, in its replica (`deployments.engine.held_answers`):

    x-antefix-hold             a gateway asks for that, for so many seconds; on an answer: it does,
                               for the request of this `x-request-id`
    x-antefix-held             the ticket of such a stream, which another gateway reads from its
                               beginning (POST /antefix/held) or will not read on (DELETE)
    x-antefix-reader           who that is: a later one takes it over, and only the last may end it
    x-antefix-events           so many of its events the client has

A stream's headers wait for its first token, which is when these are known: no token is later
for it, and an engine that fails before its first token can still be replaced by another.
"""

from __future__ import annotations

TICKET_HEADER = "x-antefix-ticket"
PASS_HEADER = "x-antefix-pass"
UNRESERVED_HEADER = "x-antefix-unreserved"
RESERVED_HEADER, IF_ROOM = "x-antefix-reserved", "if-room"
EXPECTED_CACHED_HEADER = "x-antefix-expected-cached"
TENANT_HEADER = "x-antefix-tenant"
SALT_HEADER = "x-antefix-cache-salt"

PROMPT_TOKENS_HEADER = "x-antefix-prompt-tokens"
CACHED_TOKENS_HEADER = "x-antefix-cached-tokens"
ENGINE_TTFT_HEADER = "x-antefix-engine-ttft"
LOAD_HEADER = "x-antefix-load"
OUTPUT_TOKENS_HEADER = "x-antefix-output-tokens"
FINISH_REASON_HEADER = "x-antefix-finish-reason"
# A line that every reader of server-sent events skips, should it ever get to a client:
# https://html.spec.whatwg.org/multipage/server-sent-events.html
OUTPUT_TOKENS_COMMENT = b": antefix-output-tokens "

RESUMABLE_HEADER = "x-antefix-resumable"
RESUME_MODE_HEADER, CONTINUED = "x-antefix-resume-mode", "continued"
# `: antefix-tokens <choice index> <id>,<id>,...`, also of a chunk that made no event.
TOKENS_COMMENT = b": antefix-tokens "
# In an answer that is not a stream, after its tokens: `: antefix-answer <length in bytes>`, a blank
# line, and the answer's JSON.
ANSWER_COMMENT = b": antefix-answer "
PROGRESS_CONTENT_TYPE = "application/vnd.antefix.progress"
# The top-level key of a body that is to be gone on with: {"chunks": [[index, [ids]]], "events":
# whole events the client has, "cached_tokens", "created"}. Refused with this code, and 409.
RESUME_FIELD = "antefix_resume"
CANNOT_RESUME = "cannot_resume"

HOLD_HEADER = "x-antefix-hold"
HELD_HEADER = "x-antefix-held"
READER_HEADER = "x-antefix-reader"
EVENTS_HEADER = "x-antefix-events"
HELD_PATH = "/antefix/held"
# The last that a reader gets of a stream that another has taken over.
TAKEN_OVER_COMMENT = b": antefix-taken-over"

# The tokens of an exchange that ended early.
TOKENS_PATH = "/antefix/tokens"

# 425 Too Early: never an engine's own answer.
NOT_RESERVED = 425

# Where a replica says how it turns requests into tokens (`deployments.prompt.facts`).
RENDERER_PATH = "/antefix/renderer"

# Where a gateway asks a replica to profile its engine, for `?seconds=`, and for how long at most.
PROFILE_PATH = "/antefix/profile"
LONGEST_PROFILE_S = 60.0
