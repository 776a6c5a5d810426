// One decision in full: in words, then every candidate, then as the gateway tells it.

import { bar, chip, count, el, objective, percent, seconds, table, tokens } from "./dom.js";
import { isRefused, LOSSES, missed, observed } from "./facts.js";

const POLICIES = {
  prefix: "It costs least by its score: the wait there, and computing what is not cached, for this request and those it delays. Scores closer than a prediction can tell are equal; of those the one with the fewest requests is taken.",
  least_loaded: "It has the fewest requests, then the fewest prompt tokens queued.",
  power_of_two: "It is the less loaded of two replicas drawn at random.",
  round_robin: "It was its turn.",
  random: "It was drawn at random.",
  session: "The request's session has its place there; without a session, where the load is least.",
  blind: "No load was known (Redis away, or no replica yet): by the prompt's first words, among those last known.",
};

export function explanation(decision) {
  return [
    el("dl", { class: "words" }, words(decision).map(([name, ...said]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, said)))),
    candidates(decision),
    el("details", { class: "raw" },
      el("summary", {}, "As the gateway tells it (JSON)"),
      el("pre", { tabindex: 0 }, JSON.stringify(decision, null, 2))),
    el("p", { class: "hint" },
      el("a", { href: `#${new URLSearchParams({ request: decision.request_id })}` }, "Link to this decision"),
      " (works while it is among the last hundred, or for two minutes)"),
  ];
}

function words(decision) {
  return [
    ["Prompt", prompt(decision)],
    ["Admission", ...admission(decision)],
    ["Budget", budget(decision)],
    ["Where the time went", phases(decision)],
    ["Why this one", ...why(decision)],
    ["What came of it", ...outcome(decision)],
    ["Reuse", reuse(decision)],
    ["Shadow policy", shadow(decision)],
  ].filter(([, ...said]) => said.some((part) => part));
}

function prompt(decision) {
  const { counted } = decision.prompt_tokens;
  if (decision.rejoined) return `${tokens(decision.prompt_tokens.confirmed)}; not read again.`;
  const known = decision.prompt_known
    ? `${tokens(counted)}, as the engine would count them`
    : `about ${tokens(counted)}, guessed from its length: how this model makes tokens is not known here`;
  const asked = !decision.segments ? "too short to ask the index for"
    : decision.index_answered ? `${count(decision.segments)} segments asked of the index, answered in ${seconds(decision.lookup_s)}`
      : `${count(decision.segments)} segments asked of the index, which did not answer in time (${seconds(decision.lookup_s)}): placed by load`;
  return `${known}; read in ${seconds(decision.read_s)}; ${asked}.`;
}

function admission(decision) {
  const { verdict, priority, reason, waited_s: waited } = decision.admission;
  return [
    chip(verdict, VERDICTS[verdict] ?? "plain"), ` Class ${priority}`,
    decision.slo_ttft_s === null ? ", no objective" : `, first token promised within ${objective(decision.slo_ttft_s)}`,
    verdict === "refused" ? "" : `, let in ${seconds(waited)} after it came`,
    `: ${reason.replace(/\.$/, "")}.`,
  ];
}

const LIMITS = {
  requests: "requests a minute",
  tokens: "tokens a minute",
  concurrent: "requests at once",
};

// What it took of its tenant's budgets, and what was left; a gateway of an older release tells none.
function budget({ budget: of }) {
  if (!of) return null;
  const whose = ({ model }) => model ? ` of ${model}` : "";
  const limits = of.limits.map((one) => one.left === null ? `${count(one.limit)} ${LIMITS[one.kind]}${whose(one)}`
    : `${count(one.left)} left of ${count(one.limit)} ${LIMITS[one.kind]}${whose(one)}`).join(", ");
  const how = of.refused === "unknown" ? "How much was used is not known: Redis was away, or had just begun"
    : of.refused ? `No room: its tenant may have no more ${LIMITS[of.refused]}` : `It took at most ${tokens(of.tokens)}`;
  return `${how}${of.by_share ? ", by this gateway's share, for Redis is away" : ""}; ${limits}.`;
}

const PHASES = {
  upload_s: "to upload it (not counted)",
  read_s: "to read the prompt and look it up",
  promotion_s: "to give a warm replica traffic",
  wait_s: "waiting for its turn",
  retry_s: "on attempts that failed",
  engine_s: "in the engine, from placement to first token",
};

function phases(decision) {
  const spent = Object.entries(PHASES).filter(([name]) => decision.phases?.[name]);
  return spent.map(([name, on]) => `${seconds(decision.phases[name])} ${on}`).join(", ");
}

export const VERDICTS = { admitted: "plain", overflowed: "warn", refused: "bad" };

function why(decision) {
  const [first] = decision.candidates;
  if (isRefused(decision)) {
    if (decision.budget?.refused) return ["Nobody: it was not placed."];
    return [first ? `Nobody: the best was ${first.replica_id}${first.predicted_ttft === undefined ? "" : `, predicted ${seconds(first.predicted_ttft)} to the first token`}.`
      : decision.admission.outage ? "Nobody: no replica was up." : "Nobody: no replica was known."];
  }
  const policy = POLICIES[decision.policy] ?? "";
  if (decision.rejoined) return [`${decision.replica} was making this stream already, for a gateway that was lost: it was not placed again.`];
  if (!first) return [`${decision.replica} took it: no replica was ${decision.admission.outage ? "up" : "known"} when it was placed.`];
  const chosen = `Policy ${decision.policy} chose ${first.replica_id}. `;
  if (first.replica_id === decision.replica) return [chosen, policy];
  return [chosen, policy, ` ${decision.replica} served it: the chosen one could not take it.`];
}

function outcome(decision) {
  const ttft = observed(decision);
  if (decision.rejoined) return [`Its client had ${count(decision.rejoined.events)} of the stream's events, and had the rest from here.`];
  if (ttft === null) return [`Answered with ${decision.admission.outage ? 503 : 429} and the seconds after which to try again.`];
  // `engine`: since it was placed, which is what is predicted; a gateway of an older release has none
  const { predicted, engine = ttft } = decision.ttft_s;
  const off = predicted === null ? ""
    : `; ${seconds(engine)} after it was placed, predicted ${seconds(predicted)} (off by ${percent(Math.abs(predicted - engine) / engine)})`;
  const kept = decision.slo_ttft_s === null ? null
    : missed(decision) ? chip(`late by ${seconds(ttft - decision.slo_ttft_s)}`, "bad") : chip("within SLO", "ok");
  return [`First token after ${seconds(ttft)} from ${decision.replica}${off}. `, kept];
}

function reuse(decision) {
  const cached = decision.cached_tokens;
  if (!cached) return null;
  if (cached.confirmed === null) return "The engine did not tell what it took from its cache.";
  const lost = Object.entries(decision.reuse_loss_tokens ?? {}).filter(([, size]) => size > 0)
    .map(([cause, size]) => ` Lost ${tokens(size)} to ${cause}: ${LOSSES[cause] ?? ""}`);
  return `${tokens(cached.confirmed)} of ${tokens(decision.prompt_tokens.confirmed)} came from its cache;`
    + ` ${tokens(cached.in_index)} were in the index, ${tokens(cached.predicted)} with what was announced.`
    + (lost.join("") || " Nothing that could be reused was lost.");
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

// `predicted_ttft` is corrected; its parts are not, so they are drawn against the largest raw one.
function candidates(decision) {
  if (!decision.candidates.length) return null;
  const slowest = Math.max(...decision.candidates.map((of) => of.raw_ttft), 1e-9);
  const columns = [
    ["Candidate", "In the order of the policy; the one that served is marked", (of) => [
      el("code", {}, of.replica_id), of.highlighted ? chip("served", "ok") : null]],
    ["Predicted TTFT", "Time to first token there, corrected by how right the last predictions were", (of) => seconds(of.predicted_ttft), "num"],
    ["Its parts", "Before that correction: wait for the queue and for room, the engine step under way, computing what is not cached", (of) => parts(of, slowest), "wide"],
    ["Cached", "Prompt tokens there by the index, and with what was announced since", (of) =>
      (of.cached_tokens === of.confirmed_tokens ? tokens(of.confirmed_tokens)
        : `${count(of.confirmed_tokens)} / ${tokens(of.cached_tokens)}`), "num"],
    ["Score", "What placing it here costs all together; policy prefix takes the lowest", (of) => seconds(of.score), "num"],
    ["Running", "Requests with a first token", (of) => count(of.running), "num"],
    ["Waiting", "Requests without one yet", (of) => count(of.waiting), "num"],
    ["Queued", "Prompt tokens to be computed first", (of) => tokens(of.queued_prefill_tokens), "num"],
    ["KV use", "Share of its KV cache that running requests need", (of) => percent(of.kv_use), "num"],
    ["Lately", "Requests placed there in about the last half minute", (of) => of.placed_lately.toFixed(1), "num"],
    ["Index", "Synced: all that it holds is in the index", (of) => (of.synced ? "synced" : chip("not synced", "warn"))],
  ];
  // loads are told to operators alone
  const told = decision.candidates[0].score === undefined ? columns.filter(([name]) => OF_ITS_OWN.includes(name)) : columns;
  const rows = decision.candidates.map((of) => ({ ...of, highlighted: of.replica_id === decision.replica }));
  return el("div", { class: "candidates" },
    told === columns ? el("p", { class: "chart-key" }, el("span", { class: "swatch wait" }), "wait ",
      el("span", { class: "swatch step" }), "engine step ", el("span", { class: "swatch prefill" }), "prefill") : null,
    table("Candidates, best first", told, rows));
}

function parts(of, slowest) {
  const step = of.step_under_way ?? 0; // a gateway of another release says none
  const prefill = Math.max(0, of.raw_ttft - of.wait - step);
  const says = `wait ${seconds(of.wait)}, step ${seconds(step)}, prefill ${seconds(prefill)}`;
  return [
    bar([["wait", of.wait, `wait ${seconds(of.wait)}`], ["step", step, `engine step ${seconds(step)}`],
      ["prefill", prefill, `prefill ${seconds(prefill)}`]], slowest, says),
    el("small", { "aria-hidden": "true" }, `${seconds(of.wait)} + ${seconds(step)} + ${seconds(prefill)}`),
  ];
}
