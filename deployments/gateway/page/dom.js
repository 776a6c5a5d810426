// How this page makes elements and writes numbers. Text only ever becomes text nodes: names of
// models, tenants and requests come from users.

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const built = new WeakMap();

// Builds the inside of a node anew when its data have changed, and only then: what a
// person reads or has selected stays.
export function renew(node, data, build) {
  const now = JSON.stringify(data);
  if (built.get(node) === now) return;
  built.set(node, now);
  node.replaceChildren(...[build(data)].flat(Infinity));
}

export const NONE = "–";
const SPACE = "\u00a0"; // a number and its unit stay on one line
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value) {
  return value === null || value === undefined ? NONE : whole.format(value);
}

export function tokens(value) {
  return value === null || value === undefined ? NONE : `${count(value)}${SPACE}tok`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size === 0) return `0${SPACE}ms`;
  if (size < 0.00095) return `${(value * 1000).toFixed(2)}${SPACE}ms`;
  if (size < 0.0095) return `${(value * 1000).toFixed(1)}${SPACE}ms`;
  if (size < 0.9995) return `${(value * 1000).toFixed(0)}${SPACE}ms`;
  return `${size < 9.995 ? value.toFixed(2) : size < 99.95 ? value.toFixed(1) : count(value)}${SPACE}s`;
}

// An objective, as it is in the fleet file.
export function objective(value) {
  return value < 1 ? `${+(value * 1000).toPrecision(6)}${SPACE}ms` : `${+value.toPrecision(6)}${SPACE}s`;
}

export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return NONE;
  const value = share * 100;
  const exact = (value > 0 && value < 1) || (value > 99 && value < 100);
  return `${value.toFixed(exact ? 1 : 0)}%`;
}

export function clock(date) {
  return date.toLocaleTimeString("en-GB");
}

export function quantile(sorted, share) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] : null;
}

export function chip(text, kind) {
  return el("span", { class: `chip ${kind}` }, text);
}

export const swatch = (kind) => el("span", { class: `swatch ${kind}` });

// A term and its value, large; `more` below it. In a `dl` of the class `figures`.
export function figure(name, value, kind, more) {
  return el("div", { class: `figure ${kind ?? ""}` },
    el("dt", {}, name), el("dd", {}, value, more ? el("small", {}, more) : null));
}

// A bar of parts: [class, size], `of` the size that is the whole width.
export function bar(parts, of, label) {
  const pieces = parts.filter(([, size]) => size > 0).map(([kind, size]) => {
    const piece = el("span", { class: `part ${kind}` });
    piece.style.width = `${(100 * size) / of}%`;
    return piece;
  });
  return el("span", { class: "bar", role: "img", "aria-label": label }, pieces);
}

// A table that becomes a list of cards where the window is narrow. A column: [head, explanation,
// cell, class]; `explained` shows the explanations.
export function table(caption, columns, rows) {
  const head = columns.map(([name, , , kind]) => el("th", { scope: "col", class: kind }, name));
  const body = rows.map((row) => el("tr", { role: "row", class: row.highlighted ? "highlighted" : null },
    columns.map(([name, , cell, kind], i) => el(i ? "td" : "th",
      { role: i ? "cell" : "rowheader", scope: i ? null : "row", "data-label": name, class: kind },
      cell(row)))));
  return el("table", { role: "table" },
    el("caption", { class: "hidden" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
    el("tbody", { role: "rowgroup" }, body));
}

// How this page explains its terms, everywhere: a line that opens by keyboard, touch and mouse.
// `terms`: [term, explanation, ...].
export function explained(question, terms, ...before) {
  return el("details", { class: "help" }, el("summary", {}, question), before, definitions(terms));
}

export function definitions(terms) {
  return el("dl", { class: "terms" },
    terms.map(([term, about]) => el("div", {}, el("dt", {}, term), el("dd", {}, about))));
}
