// Line charts and stacked areas in SVG. A cursor follows the pointer or the arrow keys, the legend shows the values there.

import { h, svg, number } from "./dom.js";

const WIDTH = 620, HEIGHT = 230, LEFT = 48, RIGHT = 12, TOP = 10, BOTTOM = 26;
export const colour = (i) => `var(--s${(i % 8) + 1})`;

/** Round numbers between two values. */
export function ticks(low, high, wanted = 5) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
}

/** Mean over the last `width` points, so that a curve of single steps can be read. */
export function smooth(points, width) {
  return points.map(([x], i) => {
    const slice = points.slice(Math.max(0, i - width + 1), i + 1);
    return [x, slice.reduce((sum, [, y]) => sum + y, 0) / slice.length];
  });
}

/**
 * A chart in a panel.
 * series: [{name, points: [[x, y]], errors: [[x, low, high]], faint, dots, quiet}]; quiet: not in the legend. Options: title, note, xName, low, high, stacked, format,
 * robust: a few values that are many times the others are cut off, and named.
 */
export function chart(series, options = {}) {
  const shown = series.filter((s) => s.points.length);
  const format = options.format ?? number;
  const short = (y) => (options.format || Math.abs(y) < 1e5 ? format(y) : y.toLocaleString("en-US", { notation: "compact" }));
  const legend = h("ul", { class: "legend" });
  const head = h("div", { class: "chart-head" }, h("h3", {}, options.title ?? ""), options.note && h("span", { class: "soft small" }, options.note));
  const panel = h("section", { class: "panel chart", "aria-label": options.title });
  panel.append(head);
  if (!shown.length) {
    panel.append(h("p", { class: "soft small" }, options.empty ?? "Nothing recorded yet."));
    return panel;
  }
  const stack = options.stacked ? stacked(shown) : null;
  const xs = shown.flatMap((s) => s.points.map(([x]) => x));
  const ys = stack ? stack.flatMap((s) => s.top.map(([, y]) => y)) : shown.flatMap((s) => s.points.map(([, y]) => y));
  let [x0, x1] = extent(xs), [y0, y1] = extent(ys);
  y0 = options.low ?? (stack ? 0 : y0);
  y1 = options.high ?? y1;
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  if (y0 === y1) [y0, y1] = [Math.min(y0, 0), y1 || 1];
  const usual = options.robust ? quantile(ys, 0.95) * 1.5 : Infinity;
  if (y1 > 2 * usual) {
    head.append(h("span", { class: "soft small" }, `cut off; the highest is ${format(y1)}`));
    y1 = usual;
  }
  if (options.high === undefined) y1 += (y1 - y0) * 0.06;
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const py = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const label = `${options.title ?? "chart"}: ${shown.filter((s) => !s.quiet).map((s) => `${s.name} last ${format(s.points.at(-1)[1])}`).join(", ")}`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": `${label}. Arrow keys move along it.` });
  for (const y of ticks(y0, y1, 4)) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: py(y), y2: py(y) }),
      svg("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, short(Number(y.toPrecision(6)))));
  }
  for (const x of ticks(x0, x1, 6)) {
    if (Number.isInteger(x) || options.xFormat) picture.append(svg("text", { x: px(x), y: HEIGHT - 8, "text-anchor": px(x) > WIDTH - 36 ? "end" : "middle" }, (options.xFormat ?? String)(x)));
  }
  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(Math.min(Math.max(y, y0), y1)).toFixed(1)}`).join("");
  shown.forEach((s, i) => {
    s.colour = s.colour ?? colour(i);
    if (stack) {
      const { top, bottom } = stack[i];
      picture.append(svg("path", { class: "area", d: `${path(top)}${path(bottom.toReversed()).replace("M", "L")}Z`, style: { fill: s.colour } }));
      return;
    }
    picture.append(svg("path", { class: s.faint ? "faint" : "", d: path(s.points), style: { stroke: s.colour } }));
    for (const [x, ...ends] of s.errors ?? []) {
      const [bottom, top] = ends.map((y) => py(Math.min(Math.max(y, y0), y1)));
      picture.append(svg("line", { class: "error", x1: px(x), x2: px(x), y1: bottom, y2: top, style: { stroke: s.colour } }));
    }
    if (s.dots || s.points.length === 1) {
      for (const [x, y] of s.points) picture.append(svg("circle", { cx: px(x), cy: py(y), r: 3, style: { fill: s.colour } }));
    }
  });
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  picture.append(cursor);
  const places = [...new Set(xs)].sort((a, b) => a - b);
  let at = null;
  const tell = () => legend.replaceChildren(
    ...(at === null ? [] : [h("li", {}, `${options.xName ?? "step"} `, h("b", {}, (options.xFormat ?? String)(at)))]),
    ...shown.filter((s) => !s.quiet).map((s) => {
      const value = at === null ? s.points.at(-1)?.[1] : s.points.find(([x]) => x === at)?.[1];
      return h("li", {}, h("i", { style: { background: s.colour } }), s.name, value !== undefined && h("b", {}, format(value)));
    }));
  const move = (x) => {
    at = x;
    cursor.setAttribute("visibility", x === null ? "hidden" : "visible");
    if (x !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, px(x));
    tell();
  };
  const nearest = (x) => places.reduce((best, p) => (Math.abs(p - x) < Math.abs(best - x) ? p : best), places[0]);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    move(nearest(x0 + ((((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT)) * (x1 - x0)));
  });
  picture.addEventListener("pointerleave", () => move(null));
  picture.addEventListener("blur", () => move(null));
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const i = at === null ? (by > 0 ? 0 : places.length - 1) : places.indexOf(at) + by;
    if (places[i] !== undefined) move(places[i]);
  });
  tell();
  panel.append(legend, picture);
  return panel;
}

function quantile(values, q) {
  return values.toSorted((a, b) => a - b)[Math.floor(q * (values.length - 1))];
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  return [low, high];
}

function stacked(series) {
  const xs = [...new Set(series.flatMap((s) => s.points.map(([x]) => x)))].sort((a, b) => a - b);
  const base = new Map(xs.map((x) => [x, 0]));
  return series.map((s) => {
    const own = new Map(s.points);
    const bottom = xs.map((x) => [x, base.get(x)]);
    for (const x of xs) base.set(x, base.get(x) + (own.get(x) ?? 0));
    return { bottom, top: xs.map((x) => [x, base.get(x)]) };
  });
}
