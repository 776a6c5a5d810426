// What the decisions say all together. Functions of data; a decision is an explanation as
// GET /antefix/decisions gives it.

import { quantile } from "./dom.js";

export const observed = (decision) => decision.ttft_s?.observed ?? null;

export const verdictOf = (decision) => decision.admission?.verdict ?? null;

// How it ended; null: it is under way. A gateway of an older release does not say.
export function outcomeOf(decision) {
  if (decision.outcome !== undefined) return decision.outcome;
  return verdictOf(decision) === "rejected" ? "rejected" : "ok";
}

export const isRejected = (decision) => verdictOf(decision) === "rejected" || outcomeOf(decision) === "rejected";

export const isInvalid = (decision) => outcomeOf(decision) === "invalid";

export const isFailed = (decision) => ["failed", "deadline", "cancelled"].includes(outcomeOf(decision));

// Whether it missed an objective: its deadline passed, or its first token, the tokens after it or
// its end was late. A client that left counts if it had waited longer than promised for its first
// token or for its end.
export function missed(decision) {
  const outcome = outcomeOf(decision);
  if (outcome === "deadline") return true;
  if (isRejected(decision) || isInvalid(decision)) return false;
  const waited = observed(decision) ?? (isFailed(decision) ? decision.duration_s : null);
  if (decision.slo_ttft_s !== null && waited !== null && waited > decision.slo_ttft_s) return true;
  if (decision.duration_s > (decision.slo_e2e_s ?? Infinity)) return true;
  return (decision.slo_tpot_s ?? null) !== null && (decision.tpot_s ?? 0) > decision.slo_tpot_s;
}

// What became of a request. Charts, tables and figures all show these groups, and each decision is
// in exactly one. `uncounted` requests have no effect on goodput: the request was invalid, or its
// client left in time.
export function fateOf(decision) {
  const outcome = outcomeOf(decision);
  if (["failed", "deadline"].includes(outcome)) return "failed";
  if (outcome === "rejected") return "rejected";
  if (missed(decision)) return "late";
  return ["invalid", "cancelled"].includes(outcome) ? "uncounted" : "good";
}

// Where explanations were dropped, one stands for several requests.
const weight = (decision) => decision.stands_for ?? 1;
const total = (decisions) => decisions.reduce((sum, decision) => sum + weight(decision), 0);

// How one priority class fared. `goodput`: the share of counted requests that were served in full
// and in time.
export function fared(decisions, priority) {
  return { name: priority, ...result(decisions.filter((of) => of.admission?.priority === priority)) };
}

export function result(decisions) {
  const served = decisions.filter((decision) => observed(decision) !== null);
  const ended = decisions.filter((decision) => outcomeOf(decision) !== null);
  const [good, late, rejected, failed, uncounted] = ["good", "late", "rejected", "failed", "uncounted"]
    .map((fate) => total(ended.filter((decision) => fateOf(decision) === fate)));
  const counted = good + late + rejected + failed;
  const ttfts = served.map(observed).sort((a, b) => a - b);
  return {
    good,
    late,
    rejected,
    failed,
    uncounted,
    counted,
    goodput: counted ? good / counted : null,
    served: total(served),
    p50: quantile(ttfts, 0.5),
    p99: quantile(ttfts, 0.99),
  };
}

export const LOSSES = {
  routing: "Another replica held them, and the request went elsewhere, for a shorter queue or by policy.",
  index: "They were unknown: the index did not answer in time, or a replica had not announced them.",
  engine: "The index had them for the serving replica, which evicted them before it began to compute.",
};

// Where the prompt tokens came from, for decisions whose engine reported it. `rest` cannot be reused
// at all: parts of a segment, and each prompt's last token.
export function reuse(decisions) {
  const told = decisions.filter((decision) => decision.cached_tokens
    && decision.cached_tokens.confirmed !== null && decision.prompt_tokens.confirmed !== null);
  const sum = (of) => told.reduce((total, decision) => total + (of(decision) ?? 0), 0);
  const prompt = sum((decision) => decision.prompt_tokens.confirmed);
  const reused = sum((decision) => decision.cached_tokens.confirmed);
  const lost = Object.fromEntries(Object.keys(LOSSES).map(
    (cause) => [cause, sum((decision) => decision.reuse_loss_tokens?.[cause])]));
  const fresh = sum((decision) => decision.new_tokens);
  const named = Object.values(lost).reduce((total, part) => total + part, reused + fresh);
  return { requests: told.length, prompt, reused, fresh, lost, rest: Math.max(0, prompt - named) };
}
