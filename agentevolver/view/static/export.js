// Tables and figures as files: CSV, JSON lines, and a picture of a figure. They are made here, from what is shown.

import { h } from "./dom.js";

const SCALE = 2, MARGIN = 14, LINE = 18;
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-family"];

/** A CSV of records; a cell with a comma, quote or line break is quoted (RFC 4180). */
export function csv(records) {
  const names = [...new Set(records.flatMap((record) => Object.keys(record)))];
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [names.map(cell).join(","), ...records.map((record) => names.map((name) => cell(record[name])).join(","))].map((line) => `${line}\r\n`).join("");
}

export const jsonl = (records) => records.map((record) => `${JSON.stringify(record)}\n`).join("");

/** The menu of a table or figure: `records()` are its rows, `figure()` its SVG and the lines that stand above it. */
export function menu(name, records, figure) {
  const file = `${document.getElementById("name").textContent} ${name}`.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-").replaceAll(/^-|-$/g, "");
  const item = (text, work) => h("button", { type: "button", onclick: async (event) => {
    event.target.closest("details").open = false;
    await work();
  } }, text);
  return h("details", { class: "export" }, h("summary", { "aria-label": `export ${name}` }, "Export"), h("div", {},
    item("CSV", () => save(`${file}.csv`, new Blob([csv(records())], { type: "text/csv" }))),
    item("JSONL", () => save(`${file}.jsonl`, new Blob([jsonl(records())], { type: "application/x-ndjson" }))),
    figure && item("PNG", async () => save(`${file}.png`, await png(figure())))));
}

function save(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A picture of an SVG that is shown, with its title and legend above it. */
async function png({ picture, title, legend }) {
  const { width, height } = picture.getBoundingClientRect();
  const copy = picture.cloneNode(true), shown = [picture, ...picture.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(shown[i]);
    for (const name of STYLES) element.style.setProperty(name, style.getPropertyValue(name));
  });
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  const page = getComputedStyle(document.body), canvas = document.createElement("canvas");
  const top = MARGIN + LINE * (1 + legend.length);
  canvas.width = SCALE * (width + 2 * MARGIN);
  canvas.height = SCALE * (height + top + MARGIN);
  const draw = canvas.getContext("2d");
  draw.scale(SCALE, SCALE);
  draw.fillStyle = page.backgroundColor;
  draw.fillRect(0, 0, canvas.width, canvas.height);
  draw.fillStyle = page.color;
  draw.font = `600 14px ${page.fontFamily}`;
  draw.fillText(title, MARGIN, MARGIN + 10);
  draw.font = `12px ${page.fontFamily}`;
  legend.forEach(({ text, colour }, i) => {
    const y = MARGIN + LINE * (i + 1) + 8;
    draw.fillStyle = colour;
    draw.fillRect(MARGIN, y - 5, 14, 3);
    draw.fillStyle = page.color;
    draw.fillText(text, MARGIN + 20, y);
  });
  draw.drawImage(image, MARGIN, top, width, height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
