// What the decisions say all together. Functions of data; a decision is an explanation as
// GET /antefix/decisions gives it.

import { quantile } from "./dom.js";

export const isRefused = (decision) => decision.admission.verdict === "refused";

export const observed = (decision) => decision.ttft_s?.observed ?? null;

export function missed(decision) {
  return decision.slo_ttft_s !== null && observed(decision) !== null
    && observed(decision) > decision.slo_ttft_s;
}

// How one priority class fared: `kept` is the share of those served that were within their SLO.
export function fared(decisions, priority) {
  const own = decisions.filter((decision) => decision.admission.priority === priority);
  const served = own.filter((decision) => observed(decision) !== null);
  const promised = served.filter((decision) => decision.slo_ttft_s !== null);
  const late = promised.filter(missed).length;
  const ttfts = served.map(observed).sort((a, b) => a - b);
  return {
    served: served.length,
    promised: promised.length,
    late,
    kept: promised.length ? 1 - late / promised.length : null,
    p50: quantile(ttfts, 0.5),
    p99: quantile(ttfts, 0.99),
    refused: own.filter(isRefused).length,
  };
}

export const LOSSES = {
  workload: "New words: no replica held them, so there was nothing to reuse.",
  routing: "Another replica held them, and the request went elsewhere: for a shorter queue, or by policy.",
  index: "Nobody knew: the index did not answer in time, or a replica had not told all it holds.",
  engine: "The index knew them on the serving replica; they were gone when it began to compute.",
};

// Where the prompt tokens came from, of the decisions whose engine told. `rest` cannot be reused
// at all: parts of a segment, and each prompt's last token.
export function reuse(decisions) {
  const told = decisions.filter((decision) => decision.cached_tokens
    && decision.cached_tokens.confirmed !== null && decision.prompt_tokens.confirmed !== null);
  const sum = (of) => told.reduce((total, decision) => total + (of(decision) ?? 0), 0);
  const prompt = sum((decision) => decision.prompt_tokens.confirmed);
  const reused = sum((decision) => decision.cached_tokens.confirmed);
  const lost = Object.fromEntries(Object.keys(LOSSES).map(
    (cause) => [cause, sum((decision) => decision.reuse_loss_tokens?.[cause])]));
  const named = Object.values(lost).reduce((total, part) => total + part, reused);
  return { requests: told.length, prompt, reused, lost, rest: Math.max(0, prompt - named) };
}
