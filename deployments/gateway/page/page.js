// The page at /antefix/: asks this gateway what the fleet does, every two seconds, and shows it.

import { ask, complaint, forgetKey, hasKey, hasUsableKey, keepKey } from "./api.js";
import { Decisions } from "./decisions.js";
import { clock, el, renew } from "./dom.js";
import { hint, isLocal } from "./hints.js";
import { isDown, showPools } from "./pools.js";
import { Tenants } from "./tenants.js";
import { Traffic } from "./traffic.js";
import { Trial } from "./trial.js";

const PERIOD_MS = 2000;
const HIDDEN_PERIOD_MS = 10000;
const NO_DECISIONS = { decisions: [], tenant: "", operator: false };

const byId = (id) => document.getElementById(id);
const decisions = new Decisions(byId("decisions"));
const traffic = new Traffic(byId("traffic"));
const tenants = new Tenants(byId("tenants"));
const trial = new Trial(byId("trial"));
let linked = null; // the request that a link asks for, until it was shown
let last = NO_DECISIONS;
let seen = null; // when all was as shown
let held = false;
let timer = 0;
let turn = 0; // of the newest refresh: an older one's answers are not shown any more

// A fragment is never sent to a server; the key leaves the address bar and the history at once.
function takeFragment() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  linked = fragment.get("request");
  if (!fragment.has("key")) return;
  keepKey(fragment.get("key"));
  const rest = linked ? `#${new URLSearchParams({ request: linked })}` : "";
  history.replaceState(null, "", location.pathname + location.search + rest);
}

function askForKey(why) {
  forgetKey();
  turn += 1;
  clearTimeout(timer);
  last = NO_DECISIONS;
  traffic.forget();
  trial.forget();
  for (const id of ["fleet-view", "as-of-line", "hold", "forget"]) byId(id).hidden = true;
  for (const id of ["fleet", "gateways", "version"]) byId(id).textContent = "";
  renew(byId("links"), [], () => []);
  notify([]);
  byId("sign-in").hidden = false;
  byId("wrong-key").textContent = why;
  byId("key").focus();
}

function notify(notices) {
  renew(byId("notices"), notices, () => notices.map(([kind, text]) => el("p", { class: `notice ${kind}` }, text)));
}

async function refresh() {
  clearTimeout(timer);
  if (!hasKey()) return askForKey("");
  if (!hasUsableKey()) return askForKey("Invalid API key: it contains characters that no API key has.");
  const mine = ++turn;
  const [fleet, made, failures] = await Promise.all([ask(`status?minutes=${traffic.minutes}`), ask("decisions"),
    decisions.asksForFailures ? ask("decisions?only=failed") : null]);
  if (mine !== turn) return;
  if (fleet.status === 401 || made.status === 401) {
    const refused = fleet.status === 401 ? fleet : made;
    return askForKey(`${complaint(refused)} ${hint("key")}`);
  }
  if (!held) timer = setTimeout(refresh, document.hidden ? HIDDEN_PERIOD_MS : PERIOD_MS);
  show(fleet, made, failures?.status === 200 ? failures.body.decisions : null);
  await showLinked();
}

function show(fleet, made, failures) {
  const redisAway = made.status === 503 && made.body?.error?.code === "no_redis";
  const notices = [];
  if (fleet.status === 0) {
    notices.push(["bad", "The gateway does not answer. "
      + (seen ? `What you see is of ${clock(seen)}. ` : "") + "Trying again every 2 s."]);
  } else if (fleet.status !== 200) {
    notices.push(["bad", `The gateway cannot report what the fleet does: ${complaint(fleet)}`]);
  }
  if (redisAway) {
    notices.push(["warn", "Redis is unavailable: requests are still served, placed by what was last known; "
      + "decisions are not kept meanwhile, and those below are older."]);
  } else if (made.status !== 200 && made.status !== 0) {
    notices.push(["warn", `The decisions cannot be read: ${complaint(made)}`]);
  }
  if (fleet.status === 200) {
    const down = Object.entries(fleet.body.pools).filter(([, pool]) => isDown(pool)).map(([name]) => name);
    if (down.length) notices.push(["bad", `No replica runs in ${down.length === 1 ? "the pool" : "the pools"} ${down.join(", ")}.`]);
  }
  notify(notices);
  byId("sign-in").hidden = true;
  for (const id of ["hold", "forget"]) byId(id).hidden = false;
  document.body.classList.toggle("stale", fleet.status !== 200);
  if (made.status === 200) last = made.body;
  if (fleet.status !== 200) return;
  byId("fleet-view").hidden = false;
  seen = new Date();
  byId("as-of-line").hidden = false;
  byId("as-of").textContent = clock(seen);
  byId("as-of").dateTime = seen.toISOString();
  byId("fleet").textContent = fleet.body.fleet;
  document.title = `${fleet.body.fleet} · Antefix`;
  const gateways = Object.entries(fleet.body.gateways).filter(([, n]) => n).map(([state, n]) => `${n} ${state.toLowerCase()}`);
  byId("gateways").textContent = `gateways: ${gateways.join(", ") || "none known"}`;
  traffic.show(fleet.body);
  showPools(byId("pools"), fleet.body, last.decisions, redisAway);
  tenants.show(fleet.body);
  decisions.show(last, failures);
  byId("version").textContent = fleet.body.version ? ` Antefix ${fleet.body.version}.` : "";
  showLinks(fleet.body);
}

// The metrics' port of a cluster is not for browsers.
function showLinks({ links = {}, metrics_port: port }) {
  const metrics = port && isLocal ? { Metrics: `http://${location.hostname}:${port}/metrics` } : {};
  const all = Object.entries({ ...metrics, ...links });
  renew(byId("links"), all, () => all.map(([name, href]) => [" · ", el("a", { href }, name)]));
}

async function showLinked() {
  const wanted = linked;
  if (!wanted || byId("fleet-view").hidden) return;
  linked = null;
  byId("not-found").hidden = true;
  if (decisions.reveal(wanted)) return;
  const found = await ask(`requests/${encodeURIComponent(wanted)}`);
  if (found.status === 200 && decisions.reveal(wanted, found.body)) return;
  byId("not-found").hidden = false;
  byId("not-found").textContent = found.status === 404 ? complaint(found)
    : `The request ${wanted} cannot be read: ${complaint(found)}`;
  byId("not-found").scrollIntoView({ block: "center" });
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(byId("key").value);
  byId("key").value = "";
  refresh();
});
byId("forget").addEventListener("click", () => askForKey(""));
byId("traffic").addEventListener("change", () => refresh());
byId("decisions").addEventListener("change", () => {
  if (decisions.asksForFailures && !held) refresh();
});
byId("hold").addEventListener("click", () => {
  held = !held;
  byId("hold").setAttribute("aria-pressed", held);
  byId("as-of-line").classList.toggle("held", held);
  if (!held) return refresh();
  clearTimeout(timer);
  turn += 1; // nor does what is under way change anything
});
addEventListener("hashchange", () => {
  takeFragment();
  if (held) showLinked();
  else refresh();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !held && hasKey()) refresh();
});

byId("key-hint").textContent = hint("key");
takeFragment();
refresh();
