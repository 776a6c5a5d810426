// What the fleet serves: rates between two answers of a gateway, and what gateways kept of the last
// hours. Gateways count each for itself; those that have answered lately are added up.

import { bars } from "./chart.js";
import { clock, count, el, explained, figure, NONE, percent, renew, table, tokens } from "./dom.js";

// Rates are means over this time.
const WINDOW_S = 30;
// A gateway that has not answered for longer does not count.
const HEARD_S = 60;
// Answers that are closer show nothing: gateways count once a second.
const LEAST_S = 1;

// Outcomes, as the chart and the table show them: class, name, outcomes, meaning.
const GROUPS = [
  ["answered", "Answered", ["ok"], "Requests that were answered in full."],
  ["uncounted", "Not counted", ["invalid", "cancelled"], "Requests that were invalid (4xx other than 429), or that their client left. "
    + "Goodput counts them only if their client left after an objective was missed."],
  ["rejected", "Rejected", ["rejected"], "Requests that admission rejected with 429."],
  ["failed", "Failed", ["failed", "deadline"], "Requests that ended by an error (5xx), or by their deadline (504)."],
];
const OUTCOMES = GROUPS.flatMap(([, , outcomes]) => outcomes);
const FAILED = GROUPS.at(-1)[2];

const sumOf = (counts, names) => names.reduce((sum, name) => sum + (counts[name] ?? 0), 0);
export const requestsOf = (counts) => sumOf(counts, OUTCOMES);
export const failedOf = (counts) => sumOf(counts, FAILED);

const rateOf = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const rate = (value) => (value === null ? NONE : rateOf.format(value));

const COLUMNS = [
  ["Pool", "The pool that answered. A request that overflowed counts for the pool that it went to.", ({ name }) => name],
  ["Requests", "Requests that ended in the time range, whatever their outcome.", ({ sums }) => count(requestsOf(sums)), "num"],
  ...GROUPS.map(([, name, outcomes, about]) => [name, about, ({ sums }) => count(sumOf(sums, outcomes)), "num"]),
  ["Goodput", "The share of requests that were answered in full and within their class's objectives.", ({ sums }) => percent((sums.good ?? 0) / ((sums.good ?? 0) + (sums.bad ?? 0))), "num"],
  ["Prompt tokens", "Prompt tokens of these requests, cached ones included.", ({ sums }) => tokens(sums.prompt_tokens ?? 0), "num"],
  ["Cached", "The share of prompt tokens that engines took from their KV cache.", ({ sums }) => percent((sums.cached_tokens ?? 0) / (sums.prompt_tokens ?? 0)), "num"],
  ["Output tokens", "Tokens that engines generated.", ({ sums }) => tokens(sums.output_tokens ?? 0), "num"],
];

const TERMS = [
  ["Requests/s, tokens/s, errors/s", `Means over the last ${WINDOW_S} s. When the page opens: since the start of the chart's last bar but one. `
    + "A request counts when it ends, with all of its tokens."],
  ["Counted by", "Each gateway process counts in its memory, from its start. The page adds up those that answered it lately. Grafana and "
    + "Prometheus have the counts of all gateways, for longer."],
  ["Time range", "A gateway keeps the counts of a pool for 24 hours, and those of a single tenant for one hour. The last bar is not complete."],
];

export class Traffic {
  constructor(section) {
    this.section = section;
    this.part = (id) => section.querySelector(`#${id}`);
    this.gateways = new Map(); // process -> answers, oldest first
    section.append(explained("What do these terms mean?", [...TERMS, ...COLUMNS]));
  }

  // The time range that the reader chose.
  get minutes() {
    return this.section.querySelector("[name=minutes]:checked").value;
  }

  // What one reader saw is not for the next.
  forget() {
    this.gateways.clear();
  }

  show(status) {
    const { counted } = status;
    this.section.hidden = !counted; // a gateway of an older release does not count
    if (!counted) return;
    this.hear(counted, status.pools);
    const heard = [...this.gateways.values()];
    const running = status.gateways.RUNNING ?? heard.length;
    const since = new Date(Math.min(...heard.map((answers) => answers.at(-1).since)) * 1000);
    renew(this.part("traffic-of"), [status.of_tenant, heard.length, running, since], () =>
      `${status.of_tenant === null ? "of all tenants" : `of the tenant ${status.of_tenant}`}, counted by ${heard.length} of `
      + `${Math.max(running, heard.length)} gateways since ${since.toLocaleString("en-GB")}`);
    const names = ["prompt_tokens", "output_tokens"];
    const rates = [OUTCOMES, ...names.map((name) => [name]), FAILED, ["rejected"]].map((of) => perSecond(heard, of));
    renew(this.part("rates"), rates, () => figures(...rates));
    const history = merged(heard);
    renew(this.part("history"), history, () => charts(history));
    renew(this.part("by-pool"), history, () => table("Traffic of each pool", COLUMNS, rows(history)));
  }

  hear({ process, since, at }, pools) {
    const answers = this.gateways.get(process) ?? [];
    answers.push({ since, at, pools: Object.entries(pools).map(([name, { traffic }]) => ({ name, ...traffic })) });
    while (answers.length > 2 && answers[1].at < at - WINDOW_S) answers.shift();
    this.gateways.delete(process);
    this.gateways.set(process, answers); // the newest last
    for (const [other, of] of this.gateways) if (of.at(-1).at < at - HEARD_S) this.gateways.delete(other);
  }
}

// The sum of all gateways' rates. Null: a gateway of an older release reports no history.
function perSecond(heard, names) {
  const total = (answer) => answer.pools.reduce((sum, pool) => sum + sumOf(pool.total, names), 0);
  const rates = heard.map((answers) => {
    const [first, last] = [answers[0], answers.at(-1)];
    if (last.at - first.at < LEAST_S) return fromHistory(last, names);
    return Math.max(0, total(last) - total(first)) / (last.at - first.at);
  }).filter((one) => one !== null);
  return rates.length ? rates.reduce((sum, one) => sum + one, 0) : null;
}

// The rate by one answer only: over the last two steps of its history, as far as the gateway ran.
function fromHistory({ since, at, pools }, names) {
  const histories = pools.map((pool) => pool.history).filter(Boolean);
  if (!histories.length) return null;
  const { begins, step_s, points } = histories[0];
  const from = Math.max(since, begins + (points - 2) * step_s);
  const ended = histories.reduce((sum, { counts }) => sum
    + names.reduce((of, name) => of + (counts[name] ?? []).slice(-2).reduce((two, one) => two + one, 0), 0), 0);
  return ended / Math.max(LEAST_S, at - from);
}

function figures(requests, prompt, output, failed, rejected) {
  return [
    figure("Requests/s", rate(requests), "", "ended"),
    figure("Prompt tokens/s", rate(prompt), "", "cached ones included"),
    figure("Output tokens/s", rate(output), "", "generated"),
    figure("Errors/s", rate(failed), failed ? "bad" : "", `${rate(rejected)} rejected/s`),
  ];
}

// The histories of all gateways, added up by time: {begins, step_s, points, at, pools: [{name, counts}]}.
function merged(heard) {
  const newest = heard.at(-1).at(-1);
  const shape = newest.pools.find(({ history }) => history)?.history;
  if (!shape) return null;
  const { begins, step_s, points } = shape;
  const pools = newest.pools.map(({ name }) => {
    const counts = {};
    for (const answers of heard) {
      const history = answers.at(-1).pools.find((pool) => pool.name === name)?.history;
      if (history?.step_s !== step_s) continue; // of another time range
      const offset = (history.begins - begins) / step_s;
      for (const [what, values] of Object.entries(history.counts)) {
        counts[what] ??= new Array(points).fill(0);
        values.forEach((value, i) => {
          if (i + offset >= 0 && i + offset < points) counts[what][i + offset] += value;
        });
      }
    }
    return { name, counts };
  });
  return { begins, step_s, points, at: Math.round(newest.at), pools };
}

function charts(history) {
  if (!history) return [];
  const { begins, step_s, points, at, pools } = history;
  const lasts = (i) => (i < points - 1 ? step_s : Math.max(1, at - begins - i * step_s));
  const values = (names) => Array.from({ length: points }, (_, i) => pools.reduce(
    (sum, { counts }) => sum + names.reduce((of, name) => of + (counts[name]?.[i] ?? 0), 0), 0) / lasts(i));
  const cached = values(["cached_tokens"]);
  const computed = values(["prompt_tokens"]).map((value, i) => value - cached[i]);
  const span = points * step_s;
  const time = (share) => clock(new Date((begins + share * span) * 1000)).slice(0, 5);
  const now = Math.min(1, (at - begins) / span);
  const times = [[0, time(0)], [0.5, time(0.5)], [now, time(now)]];
  const range = `from ${time(0)} to ${time(now)}`;
  return [
    el("div", {}, el("h3", {}, "Requests per second"), bars({
      label: `Requests per second ${range}, by outcome`, times,
      series: GROUPS.map(([kind, name, outcomes]) => [kind, name.toLowerCase(), values(outcomes)]),
    })),
    el("div", {}, el("h3", {}, "Tokens per second"), bars({
      label: `Tokens per second ${range}: prompt tokens from the cache, computed prompt tokens, and output tokens`, times,
      series: [["reused", "prompt, cached", cached], ["prefill", "prompt, computed", computed], ["step", "output", values(["output_tokens"])]],
    })),
  ];
}

function rows(history) {
  return (history?.pools ?? []).map(({ name, counts }) => ({
    name, sums: Object.fromEntries(Object.entries(counts).map(([what, values]) => [what, values.reduce((sum, value) => sum + value, 0)])),
  }));
}
