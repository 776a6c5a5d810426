// What the decisions say all together. Functions of data; a decision is an explanation as
// GET /antefix/decisions gives it.

import { quantile } from "./dom.js";

export const observed = (decision) => decision.ttft_s?.observed ?? null;

export const verdictOf = (decision) => decision.admission?.verdict ?? null;

// How it ended; null: it is under way. A gateway of an older release does not say.
export function outcomeOf(decision) {
  if (decision.outcome !== undefined) return decision.outcome;
  return verdictOf(decision) === "refused" ? "rejected" : "ok";
}

export const isRefused = (decision) => verdictOf(decision) === "refused"
  || ["rejected", "invalid"].includes(outcomeOf(decision));

export const isFailed = (decision) => ["failed", "deadline", "cancelled"].includes(outcomeOf(decision));

// Whether it missed an objective: its deadline passed, or its first token, the tokens after it or
// its end was late. A client that left counts if it had waited longer than promised for its first
// token or for its end. When the rest of another gateway's stream was due is not known here.
export function missed(decision) {
  const outcome = outcomeOf(decision);
  if (outcome === "deadline") return true;
  if (isRefused(decision)) return false;
  const waited = observed(decision) ?? (isFailed(decision) ? decision.duration_s : null);
  if (decision.slo_ttft_s !== null && waited !== null && waited > decision.slo_ttft_s) return true;
  if (!decision.rejoined && decision.duration_s > (decision.slo_e2e_s ?? Infinity)) return true;
  return (decision.slo_tpot_s ?? null) !== null && (decision.tpot_s ?? 0) > decision.slo_tpot_s;
}

// Whether it counts for or against the goodput: neither what a client got wrong, nor what a client
// left in time.
export function counts(decision) {
  const outcome = outcomeOf(decision);
  return ["ok", "rejected", "failed", "deadline"].includes(outcome)
    || (outcome === "cancelled" && missed(decision));
}

// Where explanations were dropped, one stands for several requests.
const weight = (decision) => decision.stands_for ?? 1;
const total = (decisions) => decisions.reduce((sum, decision) => sum + weight(decision), 0);

// How one priority class fared. `goodput`: the share of what arrived that was served in full and
// in time; `kept`: the share of what got a first token that was in time.
export function fared(decisions, priority) {
  return { name: priority, ...result(decisions.filter((of) => of.admission?.priority === priority)) };
}

export function result(decisions) {
  const served = decisions.filter((decision) => observed(decision) !== null);
  const hasFailed = (decision) => ["failed", "deadline"].includes(outcomeOf(decision));
  const late = decisions.filter((decision) => missed(decision) && !hasFailed(decision));
  const arrived = decisions.filter(counts);
  const good = arrived.filter((decision) => outcomeOf(decision) === "ok" && !missed(decision));
  const promised = served.filter((decision) => decision.slo_ttft_s !== null);
  const ttfts = served.map(observed).sort((a, b) => a - b);
  return {
    arrived: total(arrived),
    good: total(good),
    goodput: arrived.length ? total(good) / total(arrived) : null,
    served: total(served),
    kept: promised.length ? 1 - total(promised.filter(missed)) / total(promised) : null,
    late: total(late),
    refused: total(decisions.filter((of) => isRefused(of) && counts(of))),
    failed: total(decisions.filter(hasFailed)),
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
