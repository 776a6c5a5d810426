"""The headers, paths and codes between a gateway and a replica's own HTTP server.

A gateway's request:

    x-antefix-pass             opens this engine for this ticket, or without a ticket for this
                               path; replicas answer 403 without a pass
    x-antefix-ticket           the id of this try, which connects it to a reservation of Ray Serve
    x-antefix-unreserved       there is no reservation: the replica itself reports the request to
                               Ray Serve
    x-antefix-reserved         the request has a reservation; `if-room`: the gateway makes another
                               one if the replica is full nevertheless
    x-antefix-expected-cached  the prompt tokens that the gateway expects to be cached
    x-antefix-kv-tiers         from which tiers the engine may load the prompt's blocks: `none`;
                               `host`: not from files; without it, from all
    x-antefix-kv-source        `host:port` of the replica from whose host tier the engine pulls the
                               prompt's blocks; without it, it pulls none
    x-antefix-tier-tokens      the prompt tokens that the gateway expects to be loaded from the host
                               tier, to be read from the disk tier, and to be pulled from another
                               replica, with a space between the numbers
    x-antefix-tenant           a digest of the tenant, for limits per tenant
    x-antefix-cache-salt       the salt of the cached prompt, if vLLM's API has no field for it

An engine's answer:

    x-antefix-prompt-tokens    prompt tokens, as the engine counts them
    x-antefix-cached-tokens    prompt tokens that were in its prefix cache
    x-antefix-engine-ttft      seconds from the request's arrival to its first token
    x-antefix-output-tokens    tokens that it generated; in a gateway's stream, comments report the
                               number so far, before events and at the end
    x-antefix-finish-reason    vLLM's word for why the answer ended: stop, length, ...; in a
                               stream, the last comment has it behind the number of tokens
    x-antefix-load             the replica's load at that moment (`router.board.load.LoadReport`)

`GET /antefix/tokens?ticket=...` returns the three token counts of an ended exchange, for a gateway
that abandoned it (`deployments.engine.serving.final_counts`).

An answer that another engine can resume if this one is lost:

    x-antefix-resumable        in a request: the gateway wants such an answer; in an answer: it is
                               one, and a comment with each chunk's tokens precedes its events
    x-antefix-resume-mode      `continued`: the resuming engine's tokens are not proved to be the
                               same. Without this header they are

The headers of a stream wait for its first token, when these values are known. That delays no token,
and another engine can still replace one that fails before its first token.
"""

from __future__ import annotations

TICKET_HEADER = "x-antefix-ticket"
PASS_HEADER = "x-antefix-pass"
UNRESERVED_HEADER = "x-antefix-unreserved"
RESERVED_HEADER, IF_ROOM = "x-antefix-reserved", "if-room"
EXPECTED_CACHED_HEADER = "x-antefix-expected-cached"
KV_TIERS_HEADER, NO_TIERS, HOST_ONLY = "x-antefix-kv-tiers", "none", "host"
KV_SOURCE_HEADER = "x-antefix-kv-source"
TIER_TOKENS_HEADER = "x-antefix-tier-tokens"
TENANT_HEADER = "x-antefix-tenant"
SALT_HEADER = "x-antefix-cache-salt"

PROMPT_TOKENS_HEADER = "x-antefix-prompt-tokens"
CACHED_TOKENS_HEADER = "x-antefix-cached-tokens"
ENGINE_TTFT_HEADER = "x-antefix-engine-ttft"
LOAD_HEADER = "x-antefix-load"
OUTPUT_TOKENS_HEADER = "x-antefix-output-tokens"
FINISH_REASON_HEADER = "x-antefix-finish-reason"
# Clients skip such lines, should one ever reach them:
# https://html.spec.whatwg.org/multipage/server-sent-events.html
OUTPUT_TOKENS_COMMENT = b": antefix-output-tokens "

RESUMABLE_HEADER = "x-antefix-resumable"
RESUME_MODE_HEADER, CONTINUED = "x-antefix-resume-mode", "continued"
# `: antefix-tokens <choice index> <id>,<id>,...`, also for a chunk without an event.
TOKENS_COMMENT = b": antefix-tokens "
# In an answer in one piece, after its tokens: `: antefix-answer <length in bytes>`, followed by the
# status if that is not 200, a blank line, and the answer's JSON.
ANSWER_COMMENT = b": antefix-answer "
PROGRESS_CONTENT_TYPE = "application/vnd.antefix.progress"
# A request to resume has this top-level field: {"chunks": [[index, [ids]]], "events": the number
# of whole events that the client has, "cached_tokens", "created", "made_by"}. An engine that cannot
# resume answers 409 with this code.
RESUME_FIELD = "antefix_resume"
CANNOT_RESUME = "cannot_resume"
# The start of vLLM's EngineDeadError: the engine is lost, with all its requests.
ENGINE_DEAD = "EngineCore encountered an issue"

# The token counts of an ended exchange.
TOKENS_PATH = "/antefix/tokens"

# 425 Too Early, which engines themselves never send.
NOT_RESERVED = 425

# Returns how the replica turns requests into tokens (`deployments.prompt.facts`).
RENDERER_PATH = "/antefix/renderer"

# Profiles the replica's engine for `?seconds=`, up to LONGEST_PROFILE_S.
PROFILE_PATH = "/antefix/profile"
LONGEST_PROFILE_S = 60.0
