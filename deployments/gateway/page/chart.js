// Charts with axes. Shapes are placed in per cent of the width, and the labels are HTML: letters keep
// their size in every window.

import { el, swatch, svg } from "./dom.js";

const HEIGHT = 136;
const TOP = 8;
const BOTTOM = 6;
// The gap between two labels on the time axis, in shares of its width.
const LEAST_GAP = 0.25;

// Pixels from the top; `share` of the height, from the bottom.
const down = (share) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - share);

// `ticks`: [share of the height, text]; `times`: [share of the width, text]. `keys` explain the shapes.
export function chart({ label, ticks, times, shapes, keys }) {
  const lines = ticks.map(([share]) => svg("line", { class: "tick", x1: 0, x2: "100%", y1: down(share), y2: down(share) }));
  return el("figure", { class: "chart" },
    el("div", { class: "plot" },
      el("div", { class: "y-axis", "aria-hidden": "true" }, ticks.map(([share, text]) => {
        const tick = el("span", {}, text);
        tick.style.top = `${down(share)}px`;
        return tick;
      })),
      svg("svg", { role: "img", "aria-label": label, height: HEIGHT }, lines, shapes),
      el("div", { class: "x-axis", "aria-hidden": "true" }, apart(times).map(([share, text]) => {
        const time = el("span", { class: share < LEAST_GAP / 2 ? "first" : share > 1 - LEAST_GAP / 2 ? "last" : null }, text);
        time.style.left = `${share * 100}%`;
        return time;
      }))),
    el("figcaption", {}, keys));
}

// From the right, those that do not cover each other.
function apart(times) {
  const kept = [];
  for (const time of [...times].sort(([a], [b]) => b - a)) {
    if (!kept.length || kept.at(-1)[0] - time[0] >= LEAST_GAP) kept.push(time);
  }
  return kept;
}

// A shape around the point (0, 0), moved there. `across`: a share of the width.
export function at(across, share, shape) {
  return svg("svg", { x: `${across * 100}%`, y: down(share), overflow: "visible" }, shape);
}

// Round numbers on a logarithmic axis.
export function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const step of [1, 2, 5]) found.push({ step, value: step * 10 ** power });
  }
  const shown = found.filter(({ value }) => value >= low && value <= high);
  return (shown.length > 7 ? shown.filter(({ step }) => step === 1) : shown).map(({ value }) => value);
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

// The next of 1, 2, 5, 10, 20, ... that is not less.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value * 0.999999);
}

// Stacked bars. `series`: [class, name, values]; all have a value for each step.
export function bars({ label, series, times }) {
  const steps = series[0][2].length;
  const sums = Array.from({ length: steps }, (_, i) => series.reduce((sum, [, , values]) => sum + values[i], 0));
  const top = roundUp(Math.max(...sums) || 1);
  const width = 100 / steps;
  const shapes = [];
  for (let i = 0; i < steps; i++) {
    let below = 0;
    for (const [kind, , values] of series) {
      const above = below + values[i] / top;
      if (values[i] > 0) {
        shapes.push(svg("rect", { class: kind, x: `${i * width}%`, width: `${width * 0.86}%`, y: down(above),
          height: Math.max(0.5, down(below) - down(above)) }));
      }
      below = above;
    }
  }
  return chart({
    label, times, shapes,
    ticks: [0, 0.5, 1].map((share) => [share, compact.format(share * top)]),
    keys: series.map(([kind, name]) => el("span", { class: "key" }, swatch(kind), name)),
  });
}
