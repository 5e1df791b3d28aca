import { get } from "../api.js";
import { h, table, select, state, failure, number, signed, duration } from "../dom.js";

export const title = "Trajectories";

export async function open({ query }) {
  const kind = query.get("kind") === "validation" ? "validation" : "training";
  const wanted = Object.fromEntries(["step", "environment", "outcome", "origin", "guidance", "text"].map((key) => [key, query.get(key) ?? ""]));
  const list = h("div", { "aria-live": "off" });
  const element = h("div", {}, h("h2", {}, "Trajectories"));
  let rows = [], found = null, form = null, stale = null;

  const load = async (before) => {
    found = await get(`/api/trajectories/${kind}`, { ...wanted, before });
    rows = before ? [...rows, ...found.rows] : found.rows;
  };
  const draw = () => list.replaceChildren(...content());
  const more = async (event) => {
    event.target.disabled = true;
    try {
      await load(found.next.join(":"));
      draw();
    } catch (error) {
      list.append(failure(error));
    }
  };
  const content = () => {
    if (!rows.length && !found.next) return [found.any ? state("No rollout fits.", "Take a filter away.") : state(`There are no ${kind} rollouts yet.`)];
    return [
      rows.length ? table(`${kind} rollouts`, columns(kind, rows, found.environments.length > 1), rows, (r, i) => `${same(r, rows[i - 1]) ? "same" : ""} ${same(r, rows[i + 1]) ? "follows" : ""}`.trim()) : state("Nothing found so far."),
      h("div", { class: "bar-buttons" },
        h("span", { class: "soft small" }, `${number(rows.length)} shown, down to training step ${found.searched}`),
        found.next && h("button", { onclick: more }, rows.length ? "Show more" : "Search on")),
    ];
  };
  const [steps] = await Promise.all([get(`/api/trajectories/${kind}/steps`), load()]);
  form = filters(kind, wanted, steps, found.environments);
  element.append(form, list);
  draw();
  return {
    element,
    async update(changed) {
      if (!changed.has(kind === "training" ? "trajectories" : "validation") || rows.length > 100) return;
      if (list.contains(document.activeElement) || form.contains(document.activeElement)) {
        // Rows do not move under somebody who reads them; a button says that there are new ones.
        stale ??= form.appendChild(h("button", { type: "button", onclick: async () => (stale.remove(), (stale = null), await load(), draw()) }, "New rollouts: show them"));
        return;
      }
      await load();
      draw();
    },
  };
}

function filters(kind, wanted, steps, environments) {
  const go = (event) => {
    event?.preventDefault();
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== "" && value !== "training"));
    location.hash = `#/trajectories${query.size ? `?${query}` : ""}`;
  };
  const form = h("form", { class: "filters", role: "search", onsubmit: go, onchange: go },
    select("kind", "from", [["training", "training"], ["validation", "validation"]], kind),
    select("step", "training step", [["", "all, newest first"], ...listed(steps, wanted.step)], wanted.step),
    environments.length > 1 && select("environment", "environment", [["", "any"], ...environments.map((name) => [name, name])], wanted.environment),
    select("outcome", "outcome", [["", "any"], ["success", "success"], ["failure", "failure"], ["failed", "did not happen"]], wanted.outcome),
    select("origin", "task", [["", "any"], ["original", "original"], ["synthetic", "synthetic"]], wanted.origin),
    select("guidance", "experience", [["", "any"], ["guided", "guided"], ["unguided", "not guided"]], wanted.guidance),
    h("label", {}, h("span", {}, "id or wording contains"), h("input", { type: "search", name: "text", value: wanted.text })),
    h("button", {}, "Search"));
  return form;
}

/** The newest steps to choose from; any other one can be written into the address. */
function listed(steps, chosen) {
  const shown = steps.slice(-500).map(String);
  return [...(chosen && !shown.includes(chosen) ? [chosen] : []), ...shown].toReversed().map((s) => [s, s]);
}

const same = (a, b) => b !== undefined && a.step === b.step && a.group === b.group;

/** The rollouts of a group stand below each other: what they share is said once. */
function columns(kind, rows, several) {
  const link = (r, text) => h("a", { href: `#/trajectory/${kind}/${r.step}/${r.index}` }, text);
  const marks = (r) => r.guided && [" ", h("span", { class: "tag info" }, r.kept ? "guided, kept" : "guided, stripped")];
  const head = (r) => [
    link(r, r.query || r.task_id), " ",
    h("div", { class: "soft small" }, several && [h("span", { class: "tag" }, r.environment), " "], r.task_id, " ", r.synthetic && h("span", { class: "tag" }, "synthetic")),
    h("div", { class: "soft small" }, `rollout ${r.rollout}`, marks(r))];
  const short = (r) => h("div", { class: "small" }, link(r, `rollout ${r.rollout}`), marks(r));
  return [
    { name: "training step", class: "num", cell: (r, i) => (same(r, rows[i - 1]) ? "" : r.step), value: (r) => r.step },
    { name: "task", class: "text", value: (r) => r.task_id, cell: (r, i) => (same(r, rows[i - 1]) ? short(r) : head(r)) },
    { name: "outcome", cell: outcome, value: (r) => r.score },
    { name: "ended", class: "soft", cell: (r) => r.stop_reason.replace("_", " ") },
    rows.some((r) => r.label_status && r.label_status !== "off") && { name: "labels", cell: labels },
    rows.some((r) => r.advantages.length) && { name: "advantage, first → last", class: "num", cell: (r) => (r.advantages.length ? `${signed(r.advantages[0], 2)} → ${signed(r.advantages.at(-1), 2)}` : "–") },
    { name: "turns", class: "num", cell: (r) => r.turns },
    { name: "tokens", class: "num", cell: (r) => number(r.tokens) },
    { name: "time", class: "num", cell: (r) => duration(r.seconds), value: (r) => r.seconds },
  ].filter(Boolean);
}

export function outcome(r) {
  if (r.success === null) return h("span", { class: "tag warn", title: r.error }, "did not happen");
  if (!r.acted) return h("span", { class: "tag warn", title: r.error }, "never acted");
  return h("span", { class: `tag ${r.success ? "good" : "bad"}` }, `${r.success ? "success" : "failure"} ${number(r.score, 2)}`);
}

export function labels(r) {
  if (!r.labels.length) return h("span", { class: "soft small" }, r.label_status && r.label_status !== "off" ? r.label_status : "–");
  return h("span", { class: "labels", "aria-label": `${r.labels.filter(Boolean).length} of ${r.labels.length} turns good`, role: "img" },
    r.labels.map((good) => h("span", { class: good ? "good" : "bad" }, good ? "G" : "B")));
}
