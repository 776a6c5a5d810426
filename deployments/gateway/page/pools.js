// Each pool: how it keeps its promise, where its prompts' tokens come from, its replicas.

import { bar, chip, clock, count, el, NONE, objective, percent, renew, seconds, svg, table, tokens } from "./dom.js";
import { fared, isFailed, isRefused, LOSSES, missed, observed, result, reuse, verdictOf } from "./facts.js";
import { hint } from "./hints.js";

// For the goodput's colour: the SLO file's 99 % for time to first token, and ten times its budget.
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
      cards.set(name, skeleton(name));
      place.append(cards.get(name));
    }
    const own = decisions.filter((decision) => decision.pool === name);
    update(cards.get(name), pool, own, status.reference_prompt_tokens, redisAway);
  }
}

function skeleton(name) {
  const id = `pool-${name}`;
  return el("section", { class: "card pool", "aria-labelledby": id },
    el("div", { class: "head" }, el("h2", { id }, name), el("p", { class: "about" })),
    el("dl", { class: "figures" }),
    el("div", { class: "two" },
      el("div", { class: "promise" }),
      el("div", { class: "reuse" })),
    el("div", { class: "replicas" }),
    el("details", { class: "help" }, el("summary", {}, "What am I looking at?"), help()));
}

function help() {
  return [
    el("p", {}, "A pool is a group of replicas of one model. Each replica is a vLLM engine with a KV cache of its own: "
      + "what it has computed of a prompt it need not compute again. TTFT is the time to the first token, counted from "
      + "the request's arrival at the gateway; the SLO is what the fleet file promises of it."),
    el("p", {}, "Goodput is the share of what arrived that was answered in full and within its objectives: requests that are late, "
      + "refused, timed out or failed lower it. Good looks like this: a goodput near 100 %, a hit rate that is high for a workload whose prompts begin "
      + "alike, loads that are even, and predictions that are off by little. Figures of decisions are over the last "
      + "hundred that you may see; replicas, waiting and overflow are as the gateway that answered sees them now."),
    el("p", {}, "Where to look next: many late and replicas busy: more replicas. Waiting or overflow that does not end: "
      + "the same. Hit rate low with much lost to routing: open some of those decisions below."),
  ];
}

function update(card, pool, decisions, reference, redisAway) {
  const part = (name) => card.querySelector(`.${name}`);
  const classes = [...new Set([...Object.keys(pool.admission.slo), ...decisions.flatMap((d) => d.admission?.priority ?? [])])]
    .sort().reverse(); // interactive first
  const byClass = classes.map((name) => ({ slo: pool.admission.slo[name], ...fared(decisions, name) }));
  const all = result(decisions);
  const source = reuse(decisions);
  renew(part("about"), [pool.model, pool.policy], () => [
    el("span", { class: "model", title: "The model's name in requests" }, pool.model),
    chip(`policy ${pool.policy}`, "plain", "How a replica is chosen for a request"),
  ]);
  renew(part("figures"), [pool, all, source, redisAway], () => figures(pool, all, source, redisAway));
  renew(part("promise"), [byClass, decisions.map((d) => [d.request_id, d.at])], () => promise(byClass, decisions));
  renew(part("reuse"), source, () => reuseOf(source));
  renew(part("replicas"), pool, () => replicas(pool, reference));
}

function figure(name, title, value, kind, more) {
  return el("div", { class: `figure ${kind ?? ""}`, title },
    el("dt", {}, name), el("dd", {}, value, more ? el("small", {}, more) : null));
}

function figures(pool, all, source, redisAway) {
  const { goodput } = all;
  const { admission, states, index } = pool;
  const target = pool.autoscaler?.target ?? pool.target_replicas;
  const running = states.RUNNING ?? 0;
  const others = Object.entries(states).filter(([state, n]) => state !== "RUNNING" && n)
    .map(([state, n]) => `${n} ${state.toLowerCase()}`).join(", ");
  const waiting = admission.waiting + admission.held;
  const error = index.ttft_prediction_error;
  const promises = Object.keys(admission.slo).length > 0;
  return [
    figure("Goodput", "Of the last requests that arrived, the share that was answered in full and within its class's objectives. "
      + "Late, refused (429), timed out and failed ones are not; what clients got wrong (4xx) or left in time is not counted",
      percent(goodput), goodput === null ? "" : goodput >= GOOD ? "ok" : goodput >= POOR ? "warn" : "bad",
      all.arrived ? [promises ? `${percent(all.kept)} of served; ` : "no SLO; ", `${count(all.late)} late, ${count(all.refused)} refused, ${count(all.failed)} failed`]
        : promises ? "none yet" : "no SLO, none yet"),
    figure("Hit rate", "Prompt tokens that engines confirmed to have taken from their KV cache, of all prompt tokens",
      percent(source.prompt ? source.reused / source.prompt : null), "",
      source.prompt ? `of ${tokens(source.prompt)}` : "none served yet"),
    figure("Replicas", `Running, of how many there should be; and those in other states, by Ray Serve.${wishes(pool.autoscaler)}`,
      `${running} of ${target}`, running >= target ? "" : running ? "warn" : "bad", others || "running"),
    figure("Waiting", "Requests waiting in this gateway: for their turn, or for a replica to start (held)",
      count(waiting), waiting ? "warn" : "",
      admission.held ? `${admission.held} for a replica` : admission.waiting ? `oldest ${seconds(admission.oldest_wait_s)}` : "requests"),
    figure("Overflow", "Whether a smaller model answers for this pool now, and its share of the last minute's requests",
      pool.overflow_to === null ? "none" : admission.overflowing ? "open" : "closed", admission.overflowing ? "warn" : "",
      pool.overflow_to === null ? "no other pool" : `${percent(admission.overflow_share)} to ${pool.overflow_to}`),
    redisAway || !index.answers
      ? figure("Prefix index", "Redis holds which replica has cached what; without it requests are placed by load only", "unavailable", "bad", "placing by load")
      : figure("Prefix index", "Half of the lookups are answered within this time", "healthy", "",
        index.lookup_p50_ms === null ? "no lookup yet" : `p50 ${seconds(index.lookup_p50_ms / 1000)}`),
    figure("Predictions off by", "Mean difference between predicted and observed TTFT, relative to the observed",
      error === null ? NONE : percent(error), "", error === null ? "none to compare yet" : "of the TTFT, on average"),
  ];
}

function wishes(decided) {
  if (!decided) return "";
  const { demand, target, because, arrivals, forecast } = decided;
  const expected = forecast === null ? "" : `, ${forecast.toFixed(2)} are expected`;
  return ` The autoscaler wants ${target}, ${demand} of them to take traffic (${because}); ${arrivals.toFixed(2)} requests/s come${expected}.`;
}

function promise(byClass, decisions) {
  const columns = [
    ["Class", "Priority class of the requests", (of) => of.name],
    ["TTFT objective", "Time to first token that the pool promises", (of) => [
      of.slo ? `≤ ${objective(of.slo.ttft_s)}` : "none",
      of.slo?.ttft_p50_s ? el("small", {}, ` p50 ≤ ${objective(of.slo.ttft_p50_s)}`) : null,
      of.slo?.tpot_s ? el("small", { title: "Time per output token after the first" }, ` TPOT ≤ ${objective(of.slo.tpot_s)}`) : null,
      of.slo?.e2e_s ? el("small", { title: "From arrival to the end of the answer" }, ` E2E ≤ ${objective(of.slo.e2e_s)}`) : null,
    ], "num"],
    ["Goodput", "Share of what arrived that was answered in full and in time", (of) => percent(of.goodput), "num"],
    ["Of served", "Share of those with a first token that were in time", (of) => percent(of.kept), "num"],
    ["p50", "Half of the first tokens came within this time", (of) => seconds(of.p50), "num"],
    ["p99", "99 of 100 first tokens came within this time; of fewer than a hundred, all", (of) => seconds(of.p99), "num"],
    ["Served", "Requests among the last decisions that got a first token", (of) => count(of.served), "num"],
    ["Refused", "Answered with 429: no replica was sure to meet the SLO", (of) => count(of.refused), "num"],
    ["Failed", "Ended by an error (5xx) or by their deadline (504)", (of) => count(of.failed), "num"],
  ];
  const title = el("h3", { title: "Time to first token of the last decisions, against the pool's objective" }, "Time to first token");
  if (!decisions.length) {
    const rows = byClass.length ? table("Objectives", columns.slice(0, 2), byClass) : null;
    return [title, rows ?? "", el("p", { class: "empty" }, "No decisions yet in this pool.")];
  }
  return [title, chart(decisions, byClass), table("How each class fared", columns, byClass)];
}

const WIDTH = 600;
const HEIGHT = 124;

function chart(decisions, byClass) {
  const ttfts = decisions.map(observed).filter((ttft) => ttft !== null);
  const slos = byClass.filter((of) => of.slo && of.served).map((of) => of.slo.ttft_s);
  const low = Math.min(...ttfts, ...slos, 1) * 0.7;
  const high = Math.max(...ttfts, ...slos, low * 2) * 1.4;
  const y = (ttft) => HEIGHT - 6 - (HEIGHT - 14) * (Math.log(ttft / low) / Math.log(high / low));
  const step = (WIDTH - 20) / Math.max(decisions.length, 40);
  const marks = decisions.map((decision, i) => mark(decision, WIDTH - 10 - i * step, y));
  const lines = slos.map((slo) => svg("line", { class: "slo", x1: 0, x2: WIDTH, y1: y(slo), y2: y(slo) }));
  const scale = [...new Set(ttfts.length ? [Math.min(...ttfts), Math.max(...ttfts), ...slos] : slos)];
  const labels = scale.map((ttft) => svg("text", { class: "scale", x: 2, y: Math.min(HEIGHT - 2, Math.max(9, y(ttft) - 2)) }, seconds(ttft)));
  const late = decisions.filter(missed).length;
  const refused = decisions.filter(isRefused).length;
  const failed = decisions.filter(isFailed).length;
  const label = `Time to first token of the last ${decisions.length} decisions: ${late} late, ${refused} refused, ${failed} failed`;
  return el("figure", { class: "chart" },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, lines, marks, labels),
    el("figcaption", {},
      el("span", { class: "key ok" }, "● in time"), el("span", { class: "key bad" }, "▲ late"),
      el("span", { class: "key bad" }, "× refused or failed"),
      slos.length ? el("span", { class: "key" }, "┄ SLO") : null,
      el("span", { class: "key", title: "Each mark is a decision; the height is logarithmic" },
        `logarithmic; newest right, from ${arrived(decisions.at(-1))} to ${arrived(decisions[0])}`)));
}

const arrived = (decision) => clock(new Date(decision.at * 1000));

function mark(decision, x, y) {
  const ttft = observed(decision);
  const top = ttft === null ? 8 : y(ttft);
  const bad = isRefused(decision) || isFailed(decision);
  const says = `${decision.request_id}: ${ttft === null ? decision.outcome ?? verdictOf(decision) : seconds(ttft)}`;
  const path = bad ? `M${x - 3.5} ${top - 3.5}l7 7m0-7l-7 7`
    : missed(decision) ? `M${x} ${top - 5}l5 9h-10z` : `M${x - 3.2} ${top}a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z`;
  const kind = bad ? "refused" : missed(decision) ? "late" : decision.slo_ttft_s === null ? "free" : "in-time";
  const shape = svg("path", { class: kind, d: path }, svg("title", {}, says));
  return svg("a", { href: `#${new URLSearchParams({ request: decision.request_id })}`, tabindex: -1 }, shape);
}

function reuseOf(source) {
  const title = el("h3", { title: "Of the prompt tokens of the last decisions: reused, new, or lost to what" }, "Where prompt tokens came from");
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
    bar(parts.map(([name, size, about]) => [name, size, `${name}: ${about}`]), source.prompt, says),
    el("dl", { class: "legend" }, parts.map(([name, size, about]) => el("div", {},
      el("dt", {}, el("span", { class: `swatch ${name}` }), name in LOSSES ? `lost: ${LOST_AS[name] ?? name}` : name),
      el("dd", { title: tokens(size) }, percent(size / source.prompt)),
      el("dd", { class: "why" }, about)))),
  ];
}

const ROLES = {
  active: ["ok", "Takes traffic"],
  warm: ["info", "Loaded and idle: takes traffic at once when the SLO would be missed without it"],
  asleep: ["plain", "Loaded, its GPU memory given back; wakes in seconds"],
  suspect: ["warn", "Its engine may hang: other replicas take its requests until it goes on"],
  leaving: ["plain", "Its node is drained: it finishes the requests it has"],
  unknown: ["plain", "Ray Serve runs it; what it is busy with is not known while Redis is away"],
};

// of an operator's; null where the load is not known, or not told
const ofLoad = (show) => (of) => (of.running === null ? "?" : show(of));

function replicas(pool, reference) {
  const title = el("h3", {}, "Replicas");
  if (!pool.replicas.length) return [title, el("p", { class: pool.target_replicas ? "empty bad-text" : "empty" }, whyNone(pool))];
  const columns = [
    ["Replica", "Ray Serve's id of it", (of) => el("code", {}, of.replica)],
    ["Role", "Whether it takes traffic", (of) => chip(of.role, ...(ROLES[of.role] ?? ["plain"]))],
    ["Node", "Address of its machine", (of) => of.node_ip ?? "?"],
    ["Running", "Requests that have got their first token", ofLoad((of) => count(of.running)), "num"],
    ["Waiting", "Requests there without a first token yet", ofLoad((of) => count(of.waiting)), "num"],
    ["Queued", "Prompt tokens to be computed before a new one's", ofLoad((of) => tokens(of.queued_prefill_tokens)), "num"],
    ["KV use", "Share of its KV cache that running requests need", ofLoad((of) => el("span", { class: "meter" },
      bar([[of.kv_use > 0.9 ? "bad" : "used", of.kv_use]], 1, `KV use ${percent(of.kv_use)}`), percent(of.kv_use))), "num"],
    [`TTFT of ${count(reference)} tok`, "Predicted for a prompt of that length, nothing of it cached", ofLoad((of) => seconds(of.predicted_ttft_s)), "num"],
    ["Index", "Synced: all that it holds is in the index", (of) => (of.synced === null ? "?" : of.synced ? "synced" : chip("not synced", "warn"))],
  ];
  return [title, table(`Replicas of ${pool.model}`, columns, pool.replicas)];
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
