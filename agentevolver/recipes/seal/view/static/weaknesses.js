import { MetricsFeed, get } from "../../api.js";
import { chart } from "../../chart.js";
import { h, state, table, number } from "../../dom.js";

const CURVES = [
  ["Tasks by what is said of them", /^closed_loop\/(uncertain|forgotten|stuck|mastered)$/],
  ["Success on tasks of its rounds", /^closed_loop\/(success_on_made|share_in_step)$/, 1],
];

export async function open() {
  const feed = new MetricsFeed(["closed_loop/*"]), element = h("div");
  const look = async () => {
    const [loops] = await Promise.all([get("/api/tasks/weaknesses"), feed.update()]);
    if (!element.querySelector("svg:hover")) element.replaceChildren(...content(feed, loops));
  };
  await look();
  return { element, update: async (changed) => (changed.has("weaknesses") || changed.has("metrics")) && (await look()) };
}

function content(feed, loops) {
  if (!loops.length) return [h("h2", {}, "Weaknesses"), state("This run has no closed loop, or no round of it yet.")];
  const charts = CURVES.map(([title, pattern, high]) => [title, feed.names_like(pattern), high]).filter(([, names]) => names.length).map(([title, names, high]) =>
    chart(names.map((name) => ({ name: name.split("/").slice(1).join("/"), points: feed.points(name) })), { title, low: 0, high }));
  return [...loops.map(loop), h("div", { class: "charts" }, charts)];
}

/** What the policy is weak in, and what each round of making tasks was asked for. */
function loop({ environment, step, signals, weaknesses, rounds }) {
  const said = Object.entries(signals).filter(([, n]) => n > 0).map(([name, n]) => `${number(n)} ${name}`).join(", ");
  const listed = (found) => found.map((one) => h("div", { class: "wrap" }, one.name, h("span", { class: "soft" }, one.count === null ? "" : ` × ${number(one.count)}`)));
  return h("section", {}, h("h2", {}, `Weaknesses: ${environment}`),
    step !== null && h("p", { class: "soft small" }, `At the checkpoint of training step ${step}${said && `: ${said} tasks`}. Those of forgotten and uncertain tasks count twice.`),
    weaknesses.length > 0 && table(`weaknesses of ${environment}`, [
      { name: "tool and kind", cell: (w) => w.name },
      { name: "weight", class: "num", cell: (w) => number(w.count) },
      { name: "worlds", class: "num", cell: (w) => number(w.worlds) },
      { name: "latest of them", class: "text small", cell: (w) => w.examples.slice(0, 1).map((e) => [h("div", { class: "mono" }, e.action), h("div", { class: "soft" }, e.words || e.observation), h("a", { class: "inline", href: `#/task?${new URLSearchParams({ id: e.task_id })}` }, e.task_id)]) },
    ], weaknesses),
    rounds.length > 0 && [h("h3", { class: "below" }, "Rounds that were asked for"), table(`rounds of ${environment}`, [
      { name: "round", class: "num", cell: (r) => number(r.number) },
      { name: "training step", class: "num", cell: (r) => number(r.step) },
      { name: "against", class: "text small", cell: (r) => listed(r.weaknesses) },
      { name: "ended", cell: (r) => (r.failed ? h("span", { class: "tag warn" }, "brought nothing") : "") },
    ], rounds.toReversed())]);
}
