// Elements without markup: text is only ever set as text, so that what a model wrote is shown and never interpreted.

import { menu } from "./export.js";

/** Make an element: h("td", {class: "num", onclick}, child, "text", [more]). Children that are null or false are left out. */
export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  set(element, attributes);
  append(element, children);
  return element;
}

/** The same in SVG. */
export function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  set(element, attributes);
  append(element, children);
  return element;
}

function set(element, attributes) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(element.style, value);
    else if (key === "value" || key === "checked" || key === "open") element[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function state(text, detail) {
  return h("div", { class: "state" }, h("p", {}, text), detail && h("p", { class: "small" }, detail));
}

export function failure(error) {
  return h("div", { class: "state error", role: "alert" }, h("p", {}, error.message || String(error)));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, note]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, note && [" ", h("span", { class: "soft" }, note)]))));
}

/**
 * A table in a box of its own that scrolls, with a menu to export it. A column is {name, cell(row, i), class, value(row)}: `value` is what is
 * exported in the place of the cell's text. `rowClass(row, i)` may name a class.
 */
export function table(name, columns, rows, rowClass) {
  const record = (row, i) => Object.fromEntries(columns.map((c) => [c.name || "number", c.value ? c.value(row, i) : h("span", {}, c.cell(row, i)).textContent]));
  return h("div", { class: "with-export" },
    h("div", { class: "table", tabindex: "0", role: "region", "aria-label": name }, h("table", {},
      h("thead", {}, h("tr", {}, columns.map((c) => (c.name ? h("th", { class: c.class, scope: "col" }, c.name) : h("td"))))),
      h("tbody", {}, rows.map((row, i) => h("tr", { class: rowClass?.(row, i) || null }, columns.map((c) => h("td", { class: c.class }, c.cell(row, i)))))))),
    menu(name, () => rows.map(record)));
}

export function select(name, label, options, value) {
  return h("label", {}, h("span", {}, label), h("select", { name }, options.map(([key, text]) =>
    h("option", { value: key, selected: key === value }, text))));
}

export const number = (value, digits = 3) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : value.toLocaleString("en-US", { maximumFractionDigits: size >= 100 ? 1 : digits });
};
export const signed = (value, digits = 3) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(digits);
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
export function duration(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
export const clock = (seconds) => new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
export const bytes = (n) => (n < 1e3 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(2)} GB`);
