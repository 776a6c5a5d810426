// Each pool: whether it meets its objectives, where its prompts' tokens come from, its replicas.

import { at, chart, logTicks } from "./chart.js";
import { bar, chip, clock, count, el, explained, figure, NONE, objective, percent, renew, seconds, svg, swatch, table, tokens } from "./dom.js";
import { fared, fateOf, LOSSES, observed, result, reuse } from "./facts.js";
import { hint } from "./hints.js";

// For the goodput's color: the SLO file's 99% for time to first token, and ten times its budget.
const GOOD = 0.99;
const POOR = 0.9;

// What a cause of a loss is called here.
const LOST_AS = { engine: "evicted", index: "not in the index", routing: "other replica" };

const cards = new Map();

export function showPools(place, status, decisions, redisAway) {
  for (const [name, card] of cards) {
    if (name in status.pools) continue;
    card.remove();
    cards.delete(name);
  }
  for (const [name, pool] of Object.entries(status.pools)) {
    if (!cards.has(name)) {
      cards.set(name, skeleton(name, status.reference_prompt_tokens));
      place.append(cards.get(name));
    }
    const own = decisions.filter((decision) => decision.pool === name);
    update(cards.get(name), pool, own, status.reference_prompt_tokens, redisAway);
  }
}

// A pool that should have a replica, and has none.
export const isDown = (pool) => !pool.states.RUNNING && targetOf(pool) > 0;

const targetOf = (pool) => pool.autoscaler?.target ?? pool.target_replicas;

function skeleton(name, reference) {
  const id = `pool-${name}`;
  return el("section", { class: "card pool", "aria-labelledby": id },
    el("div", { class: "head" }, el("h2", { id }, name), el("p", { class: "about" })),
    el("dl", { class: "figures" }),
    el("p", { class: "autoscaler" }),
    explained("What do these figures mean?", FIGURES, INTRODUCTION.map((text) => el("p", {}, text))),
    el("div", { class: "two" },
      el("div", {}, el("div", { class: "promise" }), explained("What do the chart and the table mean?", [...CHART, ...CLASSES])),
      el("div", { class: "reuse" })),
    el("div", { class: "replicas" }),
    explained("What do the columns of replicas mean?", [...replicaColumns(reference), ...Object.entries(ROLES).map(([role, [, about]]) => [`Role ${role}`, about])]));
}

const INTRODUCTION = [
  "A pool is a group of replicas of one model. Each replica is a vLLM engine with its own KV cache: what it has computed of a "
  + "prompt, it does not compute again. Figures of decisions cover the last hundred that you may see. Replicas, waiting and "
  + "overflow are as the gateway that answered sees them now.",
  "A healthy pool has a goodput near 100%, a high hit rate where prompts begin alike, even loads and small prediction errors. "
  + "If many requests are late and replicas are busy, or if waiting or overflow does not end, the pool needs more replicas. "
  + "If the hit rate is low and much is lost to routing, open some of those decisions below.",
];

const FIGURES = [
  ["Goodput", "The share of the last requests that were answered in full and within their class's objectives. Late, rejected (429), "
    + "timed out and failed requests count as not good. Invalid requests (4xx other than 429), and those that their client left in time, do not count."],
  ["Hit rate", "The share of all prompt tokens that engines took from their KV cache."],
  ["Replicas", "Running replicas, and how many there should be. Replicas in other states are below, as Ray Serve reports them. "
    + "Red: the pool has no replica."],
  ["Waiting", "Requests that are queued in this gateway for their turn, or wait for a replica to start."],
  ["Overflow", "Whether a smaller model answers for this pool now, and its share of the last minute's requests."],
  ["Prefix index", "Redis stores which replica has cached what. Half of the lookups take at most the p50. Without the index, the "
    + "gateway places requests by load only."],
  ["Predictions off by", "The mean difference between predicted and observed TTFT, as a share of the observed TTFT."],
  ["Autoscaler", "How many replicas it wants and why, the requests that arrive per second, and those that it expects once a new "
    + "replica could serve. Pools with a fixed number of replicas have none."],
];

const CHART = [
  ["TTFT", "The time to the first token, from the complete request at the gateway. Each mark of the chart is a decision. The "
    + "scale is logarithmic, and the newest decision is at the right. Select a mark to open its decision."],
  ["SLO", "The objective of the pool for the TTFT, a dashed line."],
];

function update(card, pool, decisions, reference, redisAway) {
  const part = (name) => card.querySelector(`.${name}`);
  const classes = [...new Set([...Object.keys(pool.admission.slo), ...decisions.flatMap((d) => d.admission?.priority ?? [])])]
    .sort().reverse(); // interactive first
  const byClass = classes.map((name) => ({ slo: pool.admission.slo[name], ...fared(decisions, name) }));
  const all = result(decisions);
  const source = reuse(decisions);
  const down = isDown(pool);
  card.classList.toggle("down", down);
  renew(part("about"), [pool.model, pool.policy, down], () => [
    el("span", { class: "model" }, pool.model),
    chip(`policy ${pool.policy}`, "plain"),
    down ? chip("no replica", "bad") : "",
  ]);
  renew(part("figures"), [pool, all, source, redisAway], () => figures(pool, all, source, redisAway));
  renew(part("autoscaler"), pool.autoscaler, () => autoscaler(pool.autoscaler));
  renew(part("promise"), [byClass, decisions.map((d) => [d.request_id, d.at])], () => promise(byClass, decisions));
  renew(part("reuse"), source, () => reuseOf(source));
  renew(part("replicas"), pool, () => replicas(pool, reference));
}

function figures(pool, all, source, redisAway) {
  const { goodput } = all;
  const { admission, states, index } = pool;
  const target = targetOf(pool);
  const running = states.RUNNING ?? 0;
  const others = Object.entries(states).filter(([state, n]) => state !== "RUNNING" && n)
    .map(([state, n]) => `${n} ${state.toLowerCase()}`).join(", ");
  const waiting = admission.queued + admission.held;
  const error = index.ttft_prediction_error;
  const promises = Object.keys(admission.slo).length > 0;
  return [
    figure("Goodput", percent(goodput), goodput === null ? "" : goodput >= GOOD ? "ok" : goodput >= POOR ? "warn" : "bad",
      all.counted || all.uncounted ? [promises ? "" : "no SLO; ", `${count(all.late)} late, ${count(all.rejected)} rejected, ${count(all.failed)} failed`,
        all.uncounted ? `, ${count(all.uncounted)} not counted` : ""]
        : promises ? "none yet" : "no SLO, none yet"),
    figure("Hit rate", percent(source.prompt ? source.reused / source.prompt : null), "",
      source.prompt ? `of ${tokens(source.prompt)}` : "none served yet"),
    figure("Replicas", `${running} of ${target}`, running >= target ? "" : running ? "warn" : "bad", others || "running"),
    figure("Waiting", count(waiting), waiting ? "warn" : "",
      admission.held ? `${admission.held} for a replica` : admission.queued ? `oldest ${seconds(admission.oldest_queued_s)}` : "requests"),
    figure("Overflow", pool.overflow_to === null ? "none" : admission.overflowing ? "open" : "closed", admission.overflowing ? "warn" : "",
      pool.overflow_to === null ? "no other pool" : `${percent(admission.overflow_share)} to ${pool.overflow_to}`),
    redisAway || !index.answers ? figure("Prefix index", "unavailable", "bad", "placing by load")
      : figure("Prefix index", "healthy", "", index.lookup_p50_ms === null ? "no lookup yet" : `p50 ${seconds(index.lookup_p50_ms / 1000)}`),
    figure("Predictions off by", error === null ? NONE : percent(error), "", error === null ? "none to compare yet" : "of the TTFT, on average"),
  ];
}

// What the autoscaler decided by, in words.
const BECAUSE = {
  forecast: "for the load that it expects", backlog: "for the prompts that wait", in_flight: "for the requests in progress",
  promoted: "because warm replicas took traffic", rejected: "because the pool rejects too many requests",
  arrivals: "because requests arrived", hold: "and keeps replicas for a while that are no longer needed",
  "less was needed": "because less was needed",
};

function autoscaler(decided) {
  if (!decided) return [];
  const { demand, target, because, arrivals, forecast } = decided;
  const expected = forecast === null ? "" : `; it expects ${forecast.toFixed(2)} once a new replica could serve`;
  return [el("b", {}, "Autoscaler: "),
    `wants ${count(target)} ${target === 1 ? "replica" : "replicas"}, ${count(demand)} of them to take traffic, ${BECAUSE[because] ?? because}. `,
    `${arrivals.toFixed(2)} requests/s arrive${expected}.`];
}

const CLASSES = [
  ["Class", "The priority class of the requests.", (of) => of.name],
  ["TTFT objective", "The longest TTFT that meets the SLO. Also, where the pool has them: TTFT of half of the requests (p50), time per "
    + "output token after the first (TPOT), and time to the end of the answer (E2E).", (of) => [
    of.slo ? `≤ ${objective(of.slo.ttft_s)}` : "none",
    of.slo?.ttft_p50_s ? el("small", {}, ` p50 ≤ ${objective(of.slo.ttft_p50_s)}`) : null,
    of.slo?.tpot_s ? el("small", {}, ` TPOT ≤ ${objective(of.slo.tpot_s)}`) : null,
    of.slo?.e2e_s ? el("small", {}, ` E2E ≤ ${objective(of.slo.e2e_s)}`) : null,
  ], "num"],
  ["Goodput", "The share of requests that were answered in full and in time.", (of) => percent(of.goodput), "num"],
  ["p50", "Half of the first tokens came within this time.", (of) => seconds(of.p50), "num"],
  ["p99", "99 of 100 first tokens came within this time; of fewer than a hundred, all.", (of) => seconds(of.p99), "num"],
  ["Served", "Requests among the last decisions that got a first token.", (of) => count(of.served), "num"],
  ["Late", "Answered, or left by the client, after an objective was missed.", (of) => count(of.late), "num"],
  ["Rejected", "Answered with 429: no replica was sure to meet the SLO.", (of) => count(of.rejected), "num"],
  ["Failed", "Ended by an error (5xx) or by their deadline (504).", (of) => count(of.failed), "num"],
  ["Not counted", "Invalid (4xx other than 429), or left by the client in time. They do not count for goodput.", (of) => count(of.uncounted), "num"],
];

function promise(byClass, decisions) {
  const title = el("h3", {}, "Time to first token of the last decisions");
  if (!decisions.length) {
    const rows = byClass.length ? table("Objectives", CLASSES.slice(0, 2), byClass) : null;
    return [title, rows ?? "", el("p", { class: "empty" }, "No decisions yet in this pool.")];
  }
  return [title, ttftChart(decisions, byClass), table("How each class fared", CLASSES, byClass)];
}

function ttftChart(decisions, byClass) {
  const ttfts = decisions.map(observed).filter((ttft) => ttft !== null);
  const slos = byClass.filter((of) => of.slo && of.served).map((of) => of.slo.ttft_s);
  const low = Math.min(...ttfts, ...slos, 1) * 0.7;
  const high = Math.max(...ttfts, ...slos, low * 2) * 1.4;
  const share = (ttft) => Math.log(ttft / low) / Math.log(high / low);
  const step = 1 / Math.max(decisions.length, 40);
  const across = (i) => 1 - (i + 0.5) * step;
  const marks = decisions.map((decision, i) => mark(decision, across(i), observed(decision) === null ? 1 : share(observed(decision))));
  const lines = slos.map((slo) => at(0, share(slo), svg("line", { class: "slo", x1: 0, x2: "100%" })));
  const { late, rejected, failed, uncounted } = result(decisions);
  return chart({
    label: `Time to first token of the last ${decisions.length} decisions: ${late} late, ${rejected} rejected, ${failed} failed, ${uncounted} not counted`,
    ticks: logTicks(low, high).map((ttft) => [share(ttft), seconds(ttft)]),
    times: [0, Math.floor(decisions.length / 2), decisions.length - 1].map((i) => [across(i), arrived(decisions[i])]),
    shapes: [lines, marks],
    keys: [
      el("span", { class: "key ok" }, "● in time"), el("span", { class: "key bad" }, "▲ late"),
      el("span", { class: "key bad" }, "× rejected or failed"),
      el("span", { class: "key" }, "□ not counted"),
      slos.length ? el("span", { class: "key" }, "┄ SLO") : null],
  });
}

// The shape of a decision's mark, by what became of it.
const CROSS = "M-3.5 -3.5l7 7m0-7l-7 7";
const MARKS = {
  good: "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
  late: "M0 -5l5 9h-10z",
  rejected: CROSS,
  failed: CROSS,
  uncounted: "M-3 -3h6v6h-6z",
};

const arrived = (decision) => clock(new Date(decision.at * 1000));

// Selecting it opens its decision, which keyboards reach in the list.
function mark(decision, across, share) {
  const fate = fateOf(decision);
  const kind = fate === "good" && decision.slo_ttft_s !== null ? "in-time" : fate;
  const shape = svg("path", { class: kind, d: MARKS[fate] });
  shape.addEventListener("click", () => {
    location.hash = new URLSearchParams({ request: decision.request_id });
  });
  return at(across, share, shape);
}

function reuseOf(source) {
  const title = el("h3", {}, "Where the prompt tokens of the last decisions came from");
  if (!source.prompt) return [title, el("p", { class: "empty" }, "Nothing served yet.")];
  const parts = [
    ["reused", source.reused, "Taken from the replica's KV cache instead of being computed."],
    ["new", source.fresh, "No replica held them, so there was nothing to reuse."],
    ...Object.keys(LOSSES).map((cause) => [cause, source.lost[cause], LOSSES[cause]]),
    ["rest", source.rest, "Too short to reuse: part of a segment, or the prompt's last token."],
  ];
  const says = parts.map(([name, size]) => `${name} ${percent(size / source.prompt)}`).join(", ");
  return [
    title,
    bar(parts, source.prompt, says),
    el("dl", { class: "legend" }, parts.map(([name, size, about]) => el("div", {},
      el("dt", {}, swatch(name), name in LOSSES ? `lost: ${LOST_AS[name] ?? name}` : name),
      el("dd", {}, percent(size / source.prompt)),
      el("dd", { class: "why" }, `${tokens(size)}. ${about}`)))),
  ];
}

const ROLES = {
  active: ["ok", "It takes traffic."],
  warm: ["info", "It is loaded and idle. It takes traffic at once when the SLO would be missed without it."],
  asleep: ["plain", "It is loaded, and its GPU memory is free. It wakes up in seconds."],
  suspect: ["warn", "Its engine may hang. Other replicas take its requests until it responds."],
  leaving: ["plain", "It is being removed, and finishes the requests it has."],
  unknown: ["plain", "Ray Serve runs it. Its load is not known while Redis is unavailable."],
};

// Loads are for operators; null where they are not known or not shown.
const ofLoad = (show) => (of) => (of.running === null ? "?" : show(of));

function replicaColumns(reference) {
  return [
    ["Replica", "Its id in Ray Serve.", (of) => el("code", {}, of.replica)],
    ["Role", "Whether it takes traffic.", (of) => chip(of.role, ROLES[of.role]?.[0] ?? "plain")],
    ["Node", "The address of its machine.", (of) => of.node_ip ?? "?"],
    ["Running", "Requests that have their first token.", ofLoad((of) => count(of.running)), "num"],
    ["Waiting", "Requests at the replica without a first token.", ofLoad((of) => count(of.waiting)), "num"],
    ["Queued", "Prompt tokens that it computes before those of a new request.", ofLoad((of) => tokens(of.queued_prefill_tokens)), "num"],
    ["KV use", "The share of its KV cache that running requests need.", ofLoad((of) => el("span", { class: "meter" },
      bar([[of.kv_use > 0.9 ? "bad" : "used", of.kv_use]], 1, `KV use ${percent(of.kv_use)}`), percent(of.kv_use))), "num"],
    [`TTFT of ${count(reference)} tok`, "Predicted for a prompt of that length with nothing of it cached.", ofLoad((of) => seconds(of.predicted_ttft_s)), "num"],
    ["Index", "Synced: the index has all that the replica caches.", (of) => (of.synced === null ? "?" : of.synced ? "synced" : chip("not synced", "warn"))],
  ];
}

function replicas(pool, reference) {
  const title = el("h3", {}, "Replicas");
  if (!pool.replicas.length) return [title, el("p", { class: targetOf(pool) ? "empty bad-text" : "empty" }, whyNone(pool))];
  return [title, table(`Replicas of ${pool.model}`, replicaColumns(reference), pool.replicas)];
}

function whyNone(pool) {
  const outage = pool.admission.outage;
  if (outage && pool.target_replicas) {
    const left = outage.up_in_s === null ? "" : ` One is predicted to be up in ${seconds(outage.up_in_s)}.`;
    return `Outage: no replica has been up for ${seconds(outage.for_s)}.${left}`;
  }
  const starting = (pool.states.STARTING ?? 0) + (pool.states.UPDATING ?? 0) + (pool.states.RECOVERING ?? 0);
  if (starting) return `No replica serves yet: ${starting} starting. Loading a model takes from seconds to minutes.`;
  if (pool.states.RUNNING) return "Running, but no replica has published its load yet. That takes a second.";
  if (!pool.target_replicas) return "Scaled to zero: the first request starts one.";
  return `No replica yet, and none is starting. ${hint("logs")}`;
}
