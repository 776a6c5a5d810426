// What each tenant used in the last hour, and what is left of its budgets.

import { bar, count, el, explained, NONE, percent, renew, table, tokens } from "./dom.js";
import { failedOf, requestsOf } from "./traffic.js";

const KINDS = { requests: "requests/min", tokens: "tokens/min", concurrent: "at once" };

const COLUMNS = [
  ["Tenant", "The owner of API keys. Operators see every tenant, others only their own.", ({ tenant }) => tenant],
  ["Requests", "Requests that ended in the last hour at the gateway that answered.", ({ last_hour: used }) => count(requestsOf(used)), "num"],
  ["Failed", "Requests that ended by an error (5xx), or by their deadline (504).", ({ last_hour: used }) => count(failedOf(used)), "num"],
  ["Prompt tokens", "Prompt tokens of these requests, cached ones included.", ({ last_hour: used }) => tokens(used.prompt_tokens ?? 0), "num"],
  ["Output tokens", "Tokens that engines generated for them.", ({ last_hour: used }) => tokens(used.output_tokens ?? 0), "num"],
  ["Budgets", "The limits in the fleet file, and what the tenant's last request at this gateway left of them. After a minute without a "
    + "request, all is left.", ({ limits }) => (limits.length ? limits.map(budget) : NONE), "budgets"],
];

function budget({ model, kind, limit, left }) {
  const of = `${KINDS[kind] ?? kind}${model ? ` of ${model}` : ""}`;
  if (left === null) return el("span", { class: "budget" }, `up to ${count(limit)} ${of}`);
  return el("span", { class: "budget" },
    bar([[left < limit / 10 ? "bad" : "used", left]], limit, `${percent(left / limit)} left`),
    `${count(left)} left of ${count(limit)} ${of}`);
}

export class Tenants {
  constructor(section) {
    this.section = section;
    this.part = (id) => section.querySelector(`#${id}`);
    section.append(explained("What do these columns mean?", COLUMNS));
  }

  show({ tenants, tenants_not_shown: more, of_tenant: own }) {
    this.section.hidden = !tenants; // a gateway of an older release reports none
    if (!tenants) return;
    renew(this.part("tenants-title"), own, () => (own === null ? "Tenants and budgets" : "Your tenant and its budgets"));
    renew(this.part("tenant-rows"), [tenants, more], () => [
      tenants.length ? table("Use and budgets", COLUMNS, tenants) : el("p", { class: "empty" }, "No tenant sent a request in the last hour."),
      more ? el("p", { class: "hint" }, `${count(more)} more used less.`) : "",
    ]);
  }
}
