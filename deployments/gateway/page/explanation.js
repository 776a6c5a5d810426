// One decision in full: in words, then each candidate, then as JSON.

import { bar, chip, count, el, explained, objective, percent, seconds, swatch, table, tokens } from "./dom.js";
import { isFailed, LOSSES, missed, observed, outcomeOf, verdictOf } from "./facts.js";

const POLICIES = {
  prefix: "It has the lowest cost: the wait there, and the computing of what is not cached, for this request and those that it delays. Costs count as equal if their difference is below the predictions' accuracy; of those it takes the replica with the fewest requests.",
  least_loaded: "It has the fewest requests, then the fewest prompt tokens queued.",
  adapter_affinity: "It has the request's adapter in memory; of such replicas, and without one of all, it has the fewest requests.",
  power_of_two: "It is the less loaded of two replicas drawn at random.",
  round_robin: "It was its turn.",
  random: "It was drawn at random.",
  session: "The request's session has its place there; without a session, where the load is least.",
  blind: "No load was known (Redis unavailable, or no replica yet). The prompt's first words choose among the replicas last known.",
};

export function explanation(decision) {
  return [
    el("dl", { class: "words" }, words(decision).map(([name, ...said]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, said)))),
    candidates(decision),
    el("details", { class: "raw" },
      el("summary", {}, "Raw JSON"),
      el("pre", { tabindex: 0 }, JSON.stringify(decision, null, 2))),
    el("p", { class: "hint" },
      el("a", { href: `#${new URLSearchParams({ request: decision.request_id })}` }, "Link to this decision"),
      " (works while it is among the last hundred, or for two to three minutes after its end)"),
  ];
}

function words(decision) {
  return [
    ["Request", decision.request_id],
    ["Prompt", prompt(decision)],
    ["Admission", ...admission(decision)],
    ["Budget", budget(decision)],
    ["Where the time went", phases(decision)],
    ["Why this one", ...why(decision)],
    ["How it ended", ...outcome(decision)],
    ["Reuse", reuse(decision)],
    ["Best alternative", alternative(decision)],
    ["Shadow policy", shadow(decision)],
  ].filter(([, ...said]) => said.some((part) => part));
}

function prompt(decision) {
  const { counted } = decision.prompt_tokens;
  if (counted === null) return null;
  const known = decision.prompt_known
    ? `${tokens(counted)}, as the engine would count them`
    : `about ${tokens(counted)}, estimated from its length: the gateway cannot tokenize for this model`;
  const asked = !decision.segments ? "too short to ask the index for"
    : decision.index_answered ? `${count(decision.segments)} ${decision.segments === 1 ? "segment" : "segments"} asked of the index, answered in ${seconds(decision.lookup_s)}`
      : `${count(decision.segments)} ${decision.segments === 1 ? "segment" : "segments"} asked of the index, which did not answer in time (${seconds(decision.lookup_s)}): placed by load`;
  return `${known}; read in ${seconds(decision.read_s)}; ${asked}.`;
}

function admission(decision) {
  if (!decision.admission) return ["Nothing was decided: the request ended before that."];
  const { verdict, priority, reason, waited_s: waited } = decision.admission;
  return [
    chip(verdict, VERDICTS[verdict] ?? "plain"), ` Class ${priority}`,
    decision.slo_ttft_s === null ? ", no objective" : `, first token promised within ${objective(decision.slo_ttft_s)}`,
    (decision.slo_e2e_s ?? null) === null ? "" : `, the whole answer within ${objective(decision.slo_e2e_s)}`,
    ["rejected", "queued"].includes(verdict) ? "" : `, admitted ${seconds(waited)} after it arrived`,
    `: ${reason.replace(/\.$/, "")}.`,
  ];
}

const LIMITS = {
  requests: "requests a minute",
  tokens: "tokens a minute",
  concurrent: "requests at once",
};

// What it took of its tenant's budgets, and what was left; a gateway of an older release reports none.
function budget({ budget: of }) {
  if (!of) return null;
  const whose = ({ model }) => model ? ` of ${model}` : "";
  const limits = of.limits.map((one) => one.left === null ? `${count(one.limit)} ${LIMITS[one.kind]}${whose(one)}`
    : `${count(one.left)} left of ${count(one.limit)} ${LIMITS[one.kind]}${whose(one)}`).join(", ");
  const how = of.exhausted === "unknown" ? "How much was used is unknown: Redis was unavailable, or had just started"
    : of.exhausted ? `No room: its tenant may have no more ${LIMITS[of.exhausted]}` : `It took at most ${tokens(of.tokens)}`;
  return `${how}${of.by_share ? ", by this gateway's share, because Redis is unavailable" : ""}; ${limits}.`;
}

const PHASES = {
  upload_s: "to upload it (not counted)",
  read_s: "to read the prompt and look it up",
  promotion_s: "to give a warm replica traffic",
  queued_s: "queued for its turn",
  retry_s: "on attempts that failed",
  engine_s: "in the engine, from placement to first token",
};

function phases(decision) {
  const spent = Object.entries(PHASES).filter(([name]) => decision.phases?.[name]);
  return spent.map(([name, on]) => `${seconds(decision.phases[name])} ${on}`).join(", ");
}

export const VERDICTS = { admitted: "plain", overflowed: "warn", queued: "warn", rejected: "bad" };

export const OUTCOMES = { ok: "ok", invalid: "warn", rejected: "bad", deadline: "bad", failed: "bad", cancelled: "warn" };

function why(decision) {
  const [first] = decision.candidates;
  if (!decision.admission) return [];
  if (["rejected", "queued"].includes(verdictOf(decision))) {
    if (decision.budget?.exhausted) return ["No replica: it was not placed."];
    return [first ? `No replica: the best was ${first.replica_id}${first.predicted_ttft === undefined ? "" : `, predicted ${seconds(first.predicted_ttft)} to the first token`}.`
      : decision.admission.outage ? "None: no replica was up." : "None: no replica was known."];
  }
  const policy = POLICIES[decision.policy] ?? "";
  if (!first && !decision.replica) return [`None: no replica was ${decision.admission.outage ? "up" : "known"} when it was placed.`];
  if (!first) return [`${decision.replica} took it: no replica was ${decision.admission.outage ? "up" : "known"} when it was placed.`];
  const chosen = `Policy ${decision.policy} chose ${first.replica_id}. `;
  const last = decision.last_replica ?? decision.replica;
  if (!last || (first.replica_id === decision.replica && last === decision.replica)) return [chosen, policy];
  if (observed(decision) === null) return [chosen, policy, ` It was sent to ${last} last.`];
  return [chosen, policy, first.replica_id === decision.replica ? "" : ` ${decision.replica} served it: the chosen one could not take it.`,
    last === decision.replica ? "" : ` It was sent to ${last} afterwards.`];
}

const STAGES = {
  upload: () => "while its body arrived",
  placement: () => "while its prompt was read and its place decided",
  turn: () => "while it waited for its turn",
  reservation: () => "while it waited for a replica with a free place",
  engine: (replica) => `while ${replica} had it, before its first token`,
  answer: (replica) => `while ${replica} answered`,
};

const ENDS = {
  deadline: "Its time was up",
  failed: "It failed",
  cancelled: "Its client left",
  invalid: "The request was invalid",
  rejected: "It was rejected",
};

// The end of a request that was not answered in full. An older gateway reports only rejections.
function end(decision) {
  const outcome = outcomeOf(decision);
  const at = STAGES[decision.stage]?.(decision.last_replica) ?? "";
  const after = decision.duration_s === undefined ? "" : ` after ${seconds(decision.duration_s)}`;
  if (outcome === null) return [`Under way for ${seconds(decision.duration_s)}, ${at.replace(/^while /, "").replace(/^it /, "")}.`];
  const with_ = [decision.status, decision.error].filter(Boolean).join(" ");
  const again = outcome === "rejected" ? "; it was answered with the seconds after which to try again" : "";
  return [chip(outcome, OUTCOMES[outcome] ?? "plain"), ` ${ENDS[outcome] ?? outcome}${after}`,
    isFailed(decision) && at ? `, ${at}` : "", with_ ? ` (${with_})` : "", again, ". "];
}

function outcome(decision) {
  return outcomeOf(decision) === "ok" ? served(decision)
    : [...end(decision), ...(observed(decision) === null ? [] : served(decision))];
}

function served(decision) {
  const ttft = observed(decision);
  if (ttft === null) return ["Answered. The engine did not report its first token."];
  // `engine`: since it was placed, which is what is predicted; a gateway of an older release has none
  const { predicted, engine = ttft } = decision.ttft_s;
  const off = predicted === null ? ""
    : `; ${seconds(engine)} after it was placed, predicted ${seconds(predicted)} (off by ${percent(Math.abs(predicted - engine) / engine)})`;
  const kept = decision.slo_ttft_s === null ? null
    : ttft > decision.slo_ttft_s ? chip(`late by ${seconds(ttft - decision.slo_ttft_s)}`, "bad")
      : missed(decision) ? chip("missed SLO", "bad") : chip("within SLO", "ok");
  return [`First token after ${seconds(ttft)} from ${decision.replica}${off}. `, kept];
}

function reuse(decision) {
  const cached = decision.cached_tokens;
  if (!cached) return null;
  if (cached.confirmed === null) return "The engine did not report what it took from its cache.";
  const fresh = decision.new_tokens ? ` ${tokens(decision.new_tokens)} are new: no replica held them.` : "";
  const lost = Object.entries(decision.reuse_loss_tokens ?? {}).filter(([, size]) => size > 0)
    .map(([cause, size]) => ` Lost ${tokens(size)} to ${cause}: ${LOSSES[cause] ?? ""}`);
  return `${tokens(cached.confirmed)} of ${tokens(decision.prompt_tokens.confirmed)} came from its cache;`
    + ` ${tokens(cached.in_index)} were in the index, ${tokens(cached.predicted)} with what was announced.`
    + fresh + (lost.join("") || " Nothing that could be reused was lost.");
}

function alternative(decision) {
  const other = decision.alternative;
  if (!other) return null;
  const what = other.replica_id === decision.replica ? "Another way to the prefix in its tiers" : other.replica_id;
  return `${what} was predicted to take ${seconds(other.predicted_ttft)}. The first token came`
    + ` ${seconds(Math.abs(other.regret))} ${other.regret > 0 ? "later" : "sooner"} than that.`;
}

function shadow(decision) {
  const other = decision.shadow;
  if (!other) return null;
  const chose = `${other.policy}, which is only recorded, would have chosen ${other.replica_id}`
    + ` (${tokens(other.cached_tokens)} cached, predicted ${seconds(other.predicted_ttft)}). `;
  if (other.replica_id === decision.candidates[0]?.replica_id) return `${chose}They agree.`;
  return chose + (other.regret > 0
    ? `Regret ${seconds(other.regret)}: the first token is predicted that much later than by it.`
    : `The followed choice is predicted to be sooner by ${seconds(-other.regret)}.`);
}

const OF_ITS_OWN = ["Candidate", "Cached", "Index"];

// `predicted_ttft` is corrected; its parts are not, so that the correction is one more part. They are
// drawn against the largest raw one.
function candidates(decision) {
  if (!decision.candidates.length) return null;
  const slowest = Math.max(...decision.candidates.map((of) => of.raw_ttft), 1e-9);
  const columns = [
    ["Candidate", "Replicas in the order of the policy. The one that served is marked.", (of) => [
      el("code", {}, of.replica_id), of.highlighted ? chip(observed(decision) === null ? "sent there" : "served", observed(decision) === null ? "plain" : "ok") : null]],
    ["Predicted TTFT", "The time to the first token there, corrected by the errors of the last predictions.", (of) => seconds(of.predicted_ttft), "num"],
    ["Its parts", "The wait for the queue, for room, for an adapter and for loads from tiers + the engine step in progress + prefill ± the "
      + "correction = predicted TTFT.", (of) => parts(of, slowest), "wide"],
    ["Cached", "Prompt tokens there according to the index, and with what was announced since. They include those loaded from tiers.", (of) =>
      (of.cached_tokens === of.confirmed_tokens ? tokens(of.confirmed_tokens)
        : `${count(of.confirmed_tokens)} / ${tokens(of.cached_tokens)}`) + fromTiers(of), "num"],
    ...(decision.candidates.some((of) => waysOf(of)) ? [["Ways", "The ways to get the prompt, with the predicted TTFT of each. The first one is chosen there. "
      + "compute: compute what is not cached. host, disk: load it from that tier. peer: pull it from another replica. prefill: let the prefill pool compute "
      + "it, and pull it.", waysOf]] : []),
    ["Cost", "Policy prefix takes the lowest. It is not a time: the wait, plus four times the prefill, for this request and those that it "
      + "delays, without the correction.", (of) => of.score.toFixed(3), "num"],
    ["Running", "Requests that have their first token.", (of) => count(of.running), "num"],
    ["Waiting", "Requests without a first token.", (of) => count(of.waiting), "num"],
    ["Queued", "Prompt tokens that the replica computes first.", (of) => tokens(of.queued_prefill_tokens), "num"],
    ["KV use", "The share of its KV cache that running requests need.", (of) => percent(of.kv_use), "num"],
    ["Placed in 30 s", "Requests placed there in about the last half minute.", (of) => of.placed_lately.toFixed(1), "num"],
    ["Index", "Synced: the index has all that the replica caches.", (of) => (of.synced ? "synced" : chip("not synced", "warn"))],
  ];
  // loads are for operators only
  const shown = decision.candidates[0].score === undefined ? columns.filter(([name]) => OF_ITS_OWN.includes(name)) : columns;
  const rows = decision.candidates.map((of) => ({ ...of, highlighted: of.replica_id === decision.replica }));
  return el("div", { class: "candidates" },
    shown === columns ? el("p", { class: "chart-key" }, swatch("wait"), "wait ", swatch("step"), "engine step ", swatch("prefill"), "prefill") : null,
    table("Candidates, best first", shown, rows),
    explained("What do these columns mean?", shown));
}

function fromTiers(of) {
  const told = (tokens, load, done) => (tokens ? `, ${count(tokens)} ${load ? "" : "not "}${done}` : "");
  return told(of.host_tokens, of.host_load, "loaded") + told(of.disk_tokens, of.disk_load, "read from disk")
    + told(of.peer_tokens, of.peer_load, `pulled from ${of.peer}`)
    + told(of.prefill_tokens, of.prefill_load, `computed by ${of.prefill_replica} and pulled`);
}

function waysOf(of) {
  return Object.entries(of.ways ?? {}).map(([way, ttft]) => `${way} ${seconds(ttft)}`).join(", ");
}

function correction(of) {
  const by = of.predicted_ttft - of.raw_ttft;
  return `${by < 0 ? "−" : "+"} ${seconds(Math.abs(by))} = ${seconds(of.predicted_ttft)}`;
}

function parts(of, slowest) {
  const step = of.step_under_way ?? 0; // a gateway of another release says none
  const turn = of.wait + (of.trial_wait ?? 0) + (of.adapter_wait ?? 0) + (of.adapter_load ?? 0);
  // an engine loads a prefix while it computes the prompts before
  const wait = Math.max(turn, (of.tier_wait ?? 0) + (of.host_load ?? 0) + (of.disk_load ?? 0) + (of.peer_load ?? 0)
    + (of.prefill ?? 0) + (of.prefill_load ?? 0) - step);
  const prefill = Math.max(0, of.raw_ttft - wait - step);
  const says = `wait ${seconds(wait)}, step ${seconds(step)}, prefill ${seconds(prefill)}, correction ${correction(of)}`;
  return [
    bar([["wait", wait], ["step", step], ["prefill", prefill]], slowest, says),
    el("small", { "aria-hidden": "true" }, `${seconds(wait)} + ${seconds(step)} + ${seconds(prefill)} ${correction(of)}`),
  ];
}
