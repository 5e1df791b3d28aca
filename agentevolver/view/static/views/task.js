import { get, here, runs } from "../api.js";
import { h, table, select, state, number } from "../dom.js";
import { keep, of_run, place } from "../place.js";
import { spot } from "./pair.js";
import { outcome } from "./trajectories.js";

export const title = "One task";
const LIMIT = 200;

/** A task at all training steps and in all runs: each rollout that is kept of it, any two of which can be put side by side. */
export async function open({ query }) {
  const id = query.get("id") ?? "", kind = query.get("kind") === "validation" ? "validation" : "training";
  const found = (await Promise.all(runs.map(async (run, i) => ({ i, run, ...(await get(`/api/trajectories/${kind}`, { task: id, limit: LIMIT }, { run: i })) })))).filter((one) => one.rows.length || one.i === here);
  const rows = found.flatMap((one) => one.rows.map((row) => ({ ...row, run: one.run, i: one.i })));
  const bar = h("div", { class: "bar-buttons", role: "status" });
  const marked = () => place().query.getAll("mark");
  const draw = () => {
    const [a, b] = marked();
    bar.replaceChildren(...(a && b ? [h("a", { class: "button", href: `#/pair?${new URLSearchParams({ a, b })}` }, "Show the two side by side")] : [h("span", { class: "soft small" }, "Mark two rollouts to see them side by side.")]));
    for (const box of element.querySelectorAll("input[name=mark]")) {
      box.checked = marked().includes(box.value);
      box.disabled = !box.checked && marked().length >= 2;
    }
  };
  const mark = (event) => {
    const others = marked().filter((item) => item !== event.target.value);
    keep({ mark: event.target.checked ? [...others, event.target.value] : others });
    draw();
  };
  const link = (r) => h("a", { class: "inline", href: `${r.i === here ? "" : of_run(r.run.name, "")}#/trajectory/${kind}/${r.step}/${r.index}` }, `rollout ${r.rollout}`);
  const element = h("div", {},
    h("h2", { class: "wrap" }, rows[0]?.query || id), h("p", { class: "soft wrap" }, id),
    h("form", { class: "filters", onchange: (event) => { keep({ kind: event.target.value, mark: null }); dispatchEvent(new HashChangeEvent("hashchange")); } },
      select("kind", "from", [["training", "training"], ["validation", "validation"]], kind)),
    rows.length ? overview(found) : state(`No ${kind} rollout of this task is kept.`),
    rows.length > 0 && [h("h2", {}, "Rollouts"), bar, table("rollouts of this task", [
      { name: "mark", cell: (r) => { const at = spot(r.i, kind, r.step, r.index); return h("input", { type: "checkbox", name: "mark", value: at, onchange: mark, "aria-label": `mark rollout ${r.rollout} of training step ${r.step}` }); }, value: () => "" },
      runs.length > 1 && { name: "run", class: "wrap", cell: (r) => r.run.name },
      { name: "training step", class: "num", cell: (r) => r.step },
      { name: "rollout", cell: (r) => [link(r), r.guided && [" ", h("span", { class: "tag info" }, "guided")]] },
      { name: "outcome", cell: outcome, value: (r) => r.score },
      { name: "turns", class: "num", cell: (r) => r.turns },
      { name: "tokens", class: "num", cell: (r) => number(r.tokens) },
    ].filter(Boolean), rows)]);
  draw();
  return { element };
}

/** Successes of the task by training step, a column a run. */
function overview(found) {
  const steps = [...new Set(found.flatMap((one) => one.rows.map((row) => row.step)))].sort((a, b) => b - a);
  const of = (one, step) => one.rows.filter((row) => row.step === step && row.success !== null);
  return h("div", {}, table("success by training step", [
    { name: "training step", class: "num", cell: (step) => step },
    ...found.map((one) => ({ name: runs.length > 1 ? one.run.name : "successes", class: "num", cell: (step) => { const own = of(one, step); return own.length && !own.some((row) => row.acted) ? "not measured" : own.length ? `${own.filter((row) => row.success).length} of ${own.length}` : "–"; } })),
  ], steps), found.some((one) => one.next) && h("p", { class: "small soft" }, "There are more of older training steps; the newest are shown."));
}
