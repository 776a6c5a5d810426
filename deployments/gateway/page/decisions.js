// The list of the last decisions: what is open stays open while others come.

import { chip, clock, count, definitions, el, NONE, seconds, tokens } from "./dom.js";
import { explanation, OUTCOMES, VERDICTS } from "./explanation.js";
import { isFailed, isInvalid, isRejected, missed, observed, outcomeOf, verdictOf } from "./facts.js";
import { hint } from "./hints.js";

const COLUMNS = [
  ["time", "Time", "When it arrived, in your time zone.", (of) => clock(new Date(of.at * 1000))],
  ["id", "Request", "The x-request-id of the request and of its answer.", (of) => of.request_id],
  ["tenant", "Tenant", "The owner of its API key.", (of) => of.tenant],
  ["model", "Model", "The model that served it, or would have.", (of) => of.model ?? NONE],
  ["verdict", "Verdict", "Admitted. Overflowed: a smaller model answered. Queued: it ended while it waited for its turn. Rejected: no replica got it.", (of) =>
    (verdictOf(of) === null ? NONE : chip(verdictOf(of), VERDICTS[verdictOf(of)] ?? "plain"))],
  ["outcome", "Outcome", "How it ended. Ok. Invalid: the request was wrong. Rejected: 429. Deadline: 504. Failed: 5xx, or an interrupted "
    + "stream. Cancelled: the client left.", (of) =>
    (outcomeOf(of) === null ? chip("under way", "info") : chip(outcomeOf(of), OUTCOMES[outcomeOf(of)] ?? "plain"))],
  ["policy", "Policy", "How the gateway chose the replica.", (of) => of.policy ?? NONE],
  ["replica", "Replica", "The replica that served it, or that it was sent to last.", (of) => of.replica ?? NONE],
  ["prompt", "Prompt", "Prompt tokens, as the engine counted them. Before that, as the gateway did.", (of) =>
    tokens(of.prompt_tokens.confirmed ?? of.prompt_tokens.counted)],
  ["cached", "Cached", "Prompt tokens that the gateway predicted to be in the replica's cache, and those that the engine confirmed.", (of) =>
    (of.cached_tokens ? `${count(of.cached_tokens.predicted)} → ${tokens(of.cached_tokens.confirmed)}` : NONE)],
  ["ttft", "TTFT", "The time to the first token, predicted and observed.", ttft],
];

const FILTERS = [
  ["Missed SLO", "The first token, the tokens after it or the end was later than the class's objective, or the deadline passed."],
  ["Rejected", "Admission or a budget rejected it (429, 503)."],
  ["Invalid", "The request was wrong (4xx other than 429), which is no failure of the fleet."],
  ["Failed", "The last hundred that ended by an error or by their deadline, or whose client left."],
];

const SEARCHED = ["request_id", "model", "pool", "replica", "last_replica", "policy", "tenant", "path", "outcome", "status", "error"];

function ttft(of) {
  if (observed(of) === null) {
    return [`${seconds(of.candidates[0]?.predicted_ttft)} → ${NONE}`, missed(of) ? [" ", chip("late", "bad")] : null];
  }
  return [`${seconds(of.ttft_s?.predicted)} → `,
    el("b", { class: missed(of) ? "bad-text" : null }, seconds(observed(of))),
    missed(of) ? [" ", chip("late", "bad")] : null];
}

export class Decisions {
  constructor(section) {
    this.part = (id) => section.querySelector(`#${id}`);
    this.decisions = [];
    this.failures = [];
    this.linked = []; // asked for by a link, and not among the last hundred
    this.nodes = new Map();
    this.part("columns").append(...COLUMNS.map(([kind, name]) => el("span", { class: kind }, name)));
    this.part("decision-terms").append(definitions([...COLUMNS.map(([, name, about]) => [name, about]), ...FILTERS]));
    this.part("find").addEventListener("input", () => this.draw());
    for (const radio of section.querySelectorAll("[name=only]")) {
      radio.addEventListener("change", () => this.draw());
    }
  }

  // Failed requests are asked for only where they are looked for.
  get asksForFailures() {
    return document.querySelector("[name=only]:checked").value === "failed";
  }

  show({ decisions, tenant, operator }, failures) {
    this.decisions = decisions;
    this.failures = failures ?? decisions.filter(isFailed);
    this.part("list").classList.toggle("operator", operator);
    this.part("columns").classList.toggle("operator", operator);
    this.part("whose").textContent = operator ? "of all tenants" : `of the tenant ${tenant}`;
    this.draw();
  }

  // Opens a decision and brings it into view. False: it is not known.
  reveal(requestId, linked = null) {
    if (linked) this.linked = [linked];
    const decision = [...this.linked, ...this.decisions].find((of) => of.request_id === requestId);
    if (!decision) return false;
    this.part("find").value = "";
    document.querySelector("[name=only][value=all]").checked = true;
    this.draw();
    const node = this.nodes.get(keyOf(decision));
    node.firstChild.open = true;
    node.scrollIntoView({ block: "start" });
    node.querySelector("summary").focus({ preventScroll: true });
    return true;
  }

  rest(shown) {
    const latest = new Set(shown.map(keyOf));
    const open = [...this.nodes.values()].filter((node) => node.firstChild.open).map((node) => node.decision);
    const all = new Map([...this.linked, ...open].map((of) => [keyOf(of), of]));
    return [...all.values()].filter((of) => !latest.has(keyOf(of))).sort((a, b) => b.at - a.at);
  }

  draw() {
    const only = document.querySelector("[name=only]:checked").value;
    const text = this.part("find").value.trim().toLowerCase();
    const wanted = (of) => (only !== "missed" || missed(of)) && (only !== "rejected" || isRejected(of))
      && (only !== "invalid" || isInvalid(of)) && (only !== "failed" || isFailed(of)) && (!text || SEARCHED.some((name) => String(of[name] ?? "").toLowerCase().includes(text))
        || (verdictOf(of) ?? "").includes(text));
    // an open decision stays, although newer ones have pushed it out
    const latest = only === "failed" ? this.failures : this.decisions;
    const shown = [...latest, ...this.rest(latest)].filter(wanted);
    this.place(shown);
    const all = latest.length;
    this.part("count").textContent = shown.length < all ? `${shown.length} of ${all}` : `${all} shown`;
    const none = this.part("no-decisions");
    none.hidden = shown.length > 0;
    none.textContent = all ? "None of the last decisions matches."
      : only === "failed" ? "No request has failed in the last hour." : `No decisions yet. ${hint("request")}`;
  }

  place(shown) {
    const list = this.part("list");
    const keys = new Set(shown.map(keyOf));
    for (const [key, node] of this.nodes) {
      if (keys.has(key)) continue;
      node.remove();
      this.nodes.delete(key);
    }
    let next = list.firstChild;
    for (const decision of shown) {
      const key = keyOf(decision);
      if (!this.nodes.has(key)) this.nodes.set(key, item(decision));
      const node = this.nodes.get(key);
      if (node === next) next = next.nextSibling;
      else list.insertBefore(node, next); // never moves what is in place: focus and open state stay
    }
  }
}

const keyOf = (decision) => JSON.stringify([decision.tenant, decision.request_id, decision.at]);

function item(decision) {
  const cells = COLUMNS.map(([kind, name, , cell]) => el("span", { class: kind },
    el("span", { class: "label" }, `${name} `), el("span", { class: "said" }, cell(decision))));
  const body = el("div", { class: "explanation" });
  const details = el("details", {}, el("summary", { class: "decision-row" }, cells), body);
  details.addEventListener("toggle", () => {
    if (details.open && !body.firstChild) body.append(...explanation(decision).filter(Boolean));
  });
  const node = el("li", {}, details);
  node.decision = decision;
  return node;
}
