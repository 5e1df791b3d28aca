// Line charts and stacked areas in SVG, drawn for the width that they have. A cursor follows the pointer or the arrow keys, the legend
// shows the values there and takes lines away; which ones is in the address (`off=TITLE|NAME`).

import { h, svg, number } from "./dom.js";
import { menu } from "./export.js";
import { place, toggle } from "./place.js";

const USUAL = 620, LEFT = 48, RIGHT = 12, TOP = 10, BOTTOM = 26;
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
 * A chart in a panel; null where there is no point and `empty` does not say why.
 * series: [{name, points: [[x, y]], errors: [[x, low, high]], faint, dots, dashed, quiet}]; quiet: not in the legend, and shown as long as the line of
 * the same `group` is. Options: title, note, xName, low, high, stacked, format, extra (an element beside the title),
 * robust: a few values that are many times the others are cut off, and named.
 */
export function chart(series, options = {}) {
  const given = series.filter((s) => s.points.length);
  given.forEach((s, i) => (s.colour = s.colour ?? colour(i)));
  const format = options.format ?? number, title = options.title ?? "chart";
  const legend = h("ul", { class: "legend" }), cut = h("span", { class: "soft small" });
  const panel = h("section", { class: "panel chart", "aria-label": title });
  const head = h("div", { class: "chart-head" }, h("h3", {}, options.title ?? ""), options.note && h("span", { class: "soft small" }, options.note), cut, h("span", { class: "spacer" }), options.extra);
  panel.append(head);
  if (!given.length) {
    if (!options.empty) return null;
    panel.append(h("p", { class: "soft small" }, options.empty));
    return panel;
  }
  const off = new Set(place().query.getAll("off").filter((item) => item.startsWith(`${title}|`)).map((item) => item.slice(title.length + 1)));
  const named = given.filter((s) => !s.quiet);
  const is_on = (s) => !off.has(s.group ?? s.name);
  let width = USUAL, at = null, drawing = null;
  const holder = h("div", { class: "drawing" });
  const redraw = () => {
    const focused = holder.contains(document.activeElement);
    drawing = draw(given.filter(is_on), { ...options, title, format, width, move: (x) => { at = x; drawing.show(x); tell(); }, at: () => at });
    holder.replaceChildren(drawing.picture);
    cut.textContent = drawing.cut;
    if (focused) drawing.picture.focus();
    tell();
  };
  const values = named.map(() => h("b"));
  const where = h("li", { hidden: true }, `${options.xName ?? "training step"} `, h("b"));
  const may_switch = named.length > 1 && !options.stacked;
  legend.append(where, ...named.map((s, i) => {
    const inside = [h("i", { class: s.dashed && "dashed", style: { background: s.dashed ? "none" : s.colour, borderColor: s.colour } }), h("span", {}, s.name), values[i]];
    if (!may_switch) return h("li", {}, inside);
    const button = h("button", { type: "button", "aria-pressed": String(is_on(s)), title: "show or hide this line", onclick: () => {
      const name = s.group ?? s.name;
      if (off.has(name)) off.delete(name);
      else off.add(name);
      button.setAttribute("aria-pressed", String(is_on(s)));
      toggle("off", `${title}|${name}`, off.has(name));
      redraw();
    } }, inside);
    return h("li", {}, button);
  }));
  const tell = () => {
    where.hidden = at === null;
    where.lastChild.textContent = at === null ? "" : (options.xFormat ?? String)(at);
    named.forEach((s, i) => {
      const value = at === null ? s.points.at(-1)?.[1] : s.points.find(([x]) => x === at)?.[1];
      values[i].textContent = value === undefined || !is_on(s) ? "" : format(value);
    });
  };
  const records = () => given.filter((s) => !s.faint).flatMap((s) => s.points.map(([x, y]) => ({ series: s.name, [(options.xName ?? "training step").replace(" ", "_")]: x, value: y })));
  head.append(menu(title, records, () => ({
    picture: drawing.picture, title: [options.title, options.note].filter(Boolean).join(", "),
    legend: named.filter(is_on).map((s) => ({ text: s.name, colour: getComputedStyle(holder).getPropertyValue(s.colour.slice(4, -1)) || s.colour })),
  })));
  panel.append(legend, holder);
  redraw();
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now < 100 || now === width) return;
    width = now;
    redraw();
  }).observe(holder);
  return panel;
}

/** The picture of lines, `show(x)` for its cursor, and what was cut off. */
function draw(shown, options) {
  const { title, format, width, move } = options, height = width < 420 ? 200 : 230;
  const short = (y) => (options.format !== number || Math.abs(y) < 1e5 ? format(y) : y.toLocaleString("en-US", { notation: "compact" }));
  const named = shown.filter((s) => !s.quiet);
  const label = `${title}: ${named.map((s) => `${s.name} last ${format(s.points.at(-1)[1])}`).join(", ") || "no line is chosen"}`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: "0", "aria-label": `${label}. Arrow keys move along it.` });
  if (!shown.length) {
    picture.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no line is chosen"));
    return { picture, show() {}, cut: "" };
  }
  const stack = options.stacked ? stacked(shown) : null;
  const xs = shown.flatMap((s) => s.points.map(([x]) => x));
  const ys = stack ? stack.flatMap((s) => s.top.map(([, y]) => y)) : shown.flatMap((s) => s.points.map(([, y]) => y));
  let [x0, x1] = extent(xs), [y0, y1] = extent(ys), cut = "";
  y0 = options.low ?? (stack ? 0 : y0);
  y1 = options.high ?? y1;
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  if (y0 === y1) [y0, y1] = [Math.min(y0, 0), y1 || 1];
  const usual = options.robust ? quantile(ys, 0.95) * 1.5 : Infinity;
  if (y1 > 2 * usual) {
    cut = `cut off; the highest is ${format(y1)}`;
    y1 = usual;
  }
  if (options.high === undefined) y1 += (y1 - y0) * 0.06;
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
  const py = (y) => height - BOTTOM - ((y - y0) / (y1 - y0)) * (height - TOP - BOTTOM);
  for (const y of ticks(y0, y1, 4)) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: py(y), y2: py(y) }),
      svg("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, short(Number(y.toPrecision(6)))));
  }
  for (const x of ticks(x0, x1, Math.max(2, Math.round(width / (options.xFormat ? 130 : 90))))) {
    if (Number.isInteger(x) || options.xFormat) picture.append(svg("text", { x: px(x), y: height - 8, "text-anchor": px(x) > width - 36 ? "end" : "middle" }, (options.xFormat ?? String)(x)));
  }
  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(Math.min(Math.max(y, y0), y1)).toFixed(1)}`).join("");
  shown.forEach((s, i) => {
    if (stack) {
      const { top, bottom } = stack[i];
      picture.append(svg("path", { class: "area", d: `${path(top)}${path(bottom.toReversed()).replace("M", "L")}Z`, style: { fill: s.colour } }));
      return;
    }
    picture.append(svg("path", { class: `${s.faint ? "faint" : ""} ${s.dashed ? "dashed" : ""}`.trim(), d: path(s.points), style: { stroke: s.colour } }));
    for (const [x, ...ends] of s.errors ?? []) {
      const [bottom, top] = ends.map((y) => py(Math.min(Math.max(y, y0), y1)));
      picture.append(svg("line", { class: "error", x1: px(x), x2: px(x), y1: bottom, y2: top, style: { stroke: s.colour } }));
    }
    if (s.dots || s.points.length === 1) {
      for (const [x, y] of s.points) picture.append(svg("circle", { cx: px(x), cy: py(y), r: 3, style: { fill: s.colour } }));
    }
  });
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  picture.append(cursor);
  const places = [...new Set(xs)].sort((a, b) => a - b);
  const nearest = (x) => places.reduce((best, p) => (Math.abs(p - x) < Math.abs(best - x) ? p : best), places[0]);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    move(nearest(x0 + ((((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0)));
  });
  picture.addEventListener("pointerleave", () => move(null));
  picture.addEventListener("blur", () => move(null));
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = options.at(), i = at === null ? (by > 0 ? 0 : places.length - 1) : places.indexOf(at) + by;
    if (places[i] !== undefined) move(places[i]);
  });
  const show = (x) => {
    cursor.setAttribute("visibility", x === null ? "hidden" : "visible");
    if (x !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, px(x));
  };
  return { picture, show, cut };
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
