import { get } from "../api.js";
import { h, table, select, state, failure, bytes } from "../dom.js";

export const title = "Run and logs";
const MOST = 400_000;

export async function open({ query }) {
  const [files, run] = await Promise.all([get("/api/logs"), get("/api/run")]);
  const name = files.find((f) => f.name === query.get("log"))?.name ?? files.find((f) => f.name === "main.log")?.name ?? files[0]?.name;
  const log = h("pre", { class: "log", tabindex: "0", "aria-label": "the end of the log" });
  let next = null;
  const follow = async () => {
    const found = await get(`/api/logs/${encodeURIComponent(name)}`, { offset: next });
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    if (next === null || found.start !== next) log.replaceChildren(found.start > 0 ? "… the beginning is left out …\n" : "");
    if (found.text) log.append(found.text);
    while (log.textContent.length > MOST && log.firstChild !== log.lastChild) log.firstChild.remove();
    next = found.next;
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const element = h("div", {}, h("h2", {}, "Logs"));
  if (name) {
    const form = h("form", { class: "filters", onchange: (event) => (location.hash = `#/run?log=${encodeURIComponent(event.target.value)}`) },
      select("log", "file", files.map((f) => [f.name, `${f.name}, ${bytes(f.size)}`]), name));
    await follow();
    element.append(form, log);
  } else element.append(state("Nothing was logged yet."));
  if (run.ray_dashboard) element.append(h("p", {}, h("a", { class: "inline", href: run.ray_dashboard, target: "_blank", rel: "noopener" }, "Ray's dashboard"), h("span", { class: "soft" }, " asks for a token; the launcher says in which file it is.")));
  element.append(h("h2", {}, "Launches"), run.launches.length ? launches(run.launches) : state("No launch is recorded; the run was not started by the launcher."),
    h("h2", {}, "Configuration"), h("pre", { class: "log", tabindex: "0", "aria-label": "configuration" }, run.config));
  requestAnimationFrame(() => (log.scrollTop = log.scrollHeight));
  return { element, update: async (changed) => name && changed.has("logs") && (await follow()) };
}

function launches(found) {
  const when = (text) => (text ? new Date(text).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "–");
  return table("launches", [
    { name: "started", cell: (l) => when(l.started_at) },
    { name: "ended", cell: (l) => when(l.ended_at) },
    { name: "exit code", class: "num", cell: (l) => l.exit_code ?? "–" },
    { name: "code", class: "mono", cell: (l) => `${(l.code?.commit ?? "unknown").slice(0, 8)}${l.code?.dirty ? " and changes" : ""}` },
    { name: "machine", cell: (l) => [l.hardware?.cpu, l.hardware?.cpus && `${l.hardware.cpus} cores`, (l.hardware?.gpus ?? []).map((g) => g.name ?? String(g)).join(", ")].filter(Boolean).join(", ") },
    { name: "arguments", class: "text mono", cell: (l) => (l.argv ?? []).join(" ") },
  ], found.toReversed());
}
