import { MetricsFeed, get } from "../api.js";
import { chart, smooth } from "../chart.js";
import { h, facts, state, number, percent, duration } from "../dom.js";
import { keep, place, toggle } from "../place.js";

export const title = "Curves";
const PHASES = [["gen", "rollouts"], ["old_log_prob", "log-probs"], ["ref", "reference"], ["adv", "advantages"], ["update_actor", "update"], ["update_weights", "weights to vLLM"], ["between_steps/save_checkpoint", "checkpoint"]];
const NAMES = [
  "rollout/*", "val-core/*", "val-aux/*", "actor/entropy", "actor/kl_loss", "actor/grad_norm", "actor/pg_loss", "actor/lr", "timing_s/*",
  "task/success/*", "response_length/mean", "perf/throughput", "exp_manager/guided_rollouts", "exp_manager/pool_size",
];
const SMOOTH = 5;

const chosen = () => place().query.getAll("metric");

export async function open() {
  const feed = new MetricsFeed([...NAMES, ...chosen()]);
  const element = h("div");
  let names = await get("/api/metrics/names");
  const draw = () => element.replaceChildren(...content(feed, names, redraw));
  const redraw = async () => {
    feed.names = [...NAMES, ...chosen()];
    feed.steps = [];
    await feed.update();
    draw();
  };
  await feed.update();
  draw();
  return {
    element,
    async update(changed) {
      if (!changed.has("metrics")) return;
      const before = feed.steps.length, generation = feed.generation;
      await feed.update();
      if (feed.steps.length === before && feed.generation === generation) return;
      if (!names.length) names = await get("/api/metrics/names");
      // A picker that is being typed into, or a chart that is being read, stays.
      if (!element.contains(document.activeElement) && !element.querySelector("svg:hover, details[open]")) draw();
    },
  };
}

function content(feed, names, redraw) {
  if (!feed.steps.length) return [state("No training step is recorded yet.", "Curves appear with the first validation or the first training step.")];
  const training = "rollout/success", reward = "rollout/reward/mean";
  const line = (name, text = name) => ({ name: text, points: feed.points(name) });
  const smoothed = (name, text) => [
    { name: text, group: text, points: feed.points(name), faint: true, quiet: true, colour: "var(--s1)" },
    { name: `${text}, mean of ${SMOOTH}`, group: text, points: smooth(feed.points(name), SMOOTH), colour: "var(--s1)" },
  ];
  const apart = feed.names_like(/^rollout\/success\//).map((name) => line(name, name.slice("rollout/success/".length)));
  const kinds = feed.names_like(/^task\/success\//).map((name) => line(name, name.slice("task/success/".length)));
  const stops = feed.names_like(/^rollout\/stop_reason\//).filter((name) => feed.points(name).some(([, y]) => y > 0));
  const idle = ["never_began", "never_acted", "cut"].map((name) => line(`rollout/${name}`, name.replace("_", " "))).filter((one) => one.points.some(([, y]) => y > 0));
  const charts = [
    validation(feed, redraw),
    chart(smoothed(training, "success"), { title: "Training success", low: 0, high: 1, empty: "No training step was measured yet." }),
    feed.points(reward).some(([, y], i) => y !== feed.points(training)[i]?.[1]) && chart(smoothed(reward, "reward"), { title: "Training reward" }),
    apart.length > 1 && chart(apart, { title: "Training success by environment", low: 0, high: 1 }),
    kinds.length > 1 && chart(kinds, { title: "Training success by kind of task", low: 0, high: 1 }),
    chart(PHASES.map(([key, text]) => line(`timing_s/${key}`, text)), { title: "Time of a training step", note: "seconds, validation left out", stacked: true, low: 0, robust: true }),
    chart([line("rollout/tokens_per_s", "sampled tokens per second")], { title: "Rollout throughput", low: 0 }),
    chart([line("actor/entropy", "entropy")], { title: "Entropy of the policy", low: 0 }),
    chart([line("actor/kl_loss", "KL to the reference")], { title: "KL loss", low: 0 }),
    chart([line("actor/grad_norm", "gradient norm")], { title: "Gradient norm", low: 0 }),
    chart([line("rollout/steps/mean", "turns of an episode")], { title: "Length of episodes", low: 0 }),
    chart([line("rollout/groups_without_signal", "share of groups whose rollouts all scored alike")], { title: "Groups without signal", low: 0, high: 1 }),
    idle.length > 0 && chart(idle, { title: "Rollouts that measure little", note: "rollouts of a training step", low: 0 }),
    chart(stops.map((name) => line(name, name.slice("rollout/stop_reason/".length))), { title: "How rollouts ended", note: "rollouts of a training step", low: 0 }),
    ...chosen().map((name) => chart([line(name)], { title: name, empty: "This run does not record it." })),
  ];
  return [h("h2", { class: "unseen" }, "Curves"), summary(feed), h("div", { class: "charts" }, charts.filter(Boolean)), picker(names, redraw)];
}

/** Names of validation metrics: the mean over the rollouts of a task, and the expected best of k of them. */
export const validation_names = (feed) => ({
  means: feed.names_like(/^val-core\/.*\/reward\/mean@\d+$/), bests: feed.names_like(/^val-core\/.*\/reward\/best@\d+\/mean$/),
});

function validation(feed, redraw) {
  const { means, bests } = validation_names(feed), several = environments(means).length > 1, with_best = place().query.has("best");
  const series = (with_best ? [...means, ...bests] : means).map((name, i) => ({
    name: validation_name(name, several), points: feed.points(name), dots: true, colour: `var(--s${(i % means.length % 8) + 1})`, dashed: i >= means.length,
  }));
  const extra = bests.length > 0 && h("label", { class: "check" }, h("input", { type: "checkbox", checked: with_best, onchange: (event) => {
    keep({ best: event.target.checked ? "1" : null });
    redraw();
  } }), "best of k too");
  return chart(series, { title: "Validation reward", low: 0, high: bound(series), empty: "No validation was measured yet.", extra });
}

const environments = (means) => [...new Set(means.map((name) => name.split("/")[1]))];

/** `val-core/<environment>[/<split>][/guided]/reward/<what>`: the split, or the environment where there is one split alone; both of several environments. */
export function validation_name(name, several) {
  const parts = name.split("/"), reward = parts.lastIndexOf("reward");
  const [environment, ...inner] = parts.slice(1, reward);
  const split = [several && environment, ...inner.filter((part) => part !== "guided")].filter(Boolean).join("/") || environment;
  return `${split} ${parts[reward + 1].replace("mean@", "avg@")}${inner.includes("guided") ? ", guided" : ""}`;
}

export const bound = (series) => (series.every((s) => s.points.every(([, y]) => y <= 1)) ? 1 : undefined);

function summary(feed) {
  const { means } = validation_names(feed);
  const steps = feed.points("timing_s/step").map(([, y]) => y);
  const recent = steps.slice(-10);
  const best = means.flatMap((name) => feed.points(name)).reduce((a, b) => (a === null || b[1] > a[1] ? b : a), null);
  const last = means.length ? feed.last(means[0]) : null;
  const success = feed.points("rollout/success").slice(-10).map(([, y]) => y);
  return facts([
    ["last training step", number(feed.steps.at(-1))],
    ["training success", success.length ? percent(mean(success)) : "–", "last 10 steps"],
    ["validation", last === null ? "–" : percent(last), means.length ? validation_name(means[0], environments(means).length > 1) : "none yet"],
    ["best validation", best ? percent(best[1]) : "–", best && `training step ${best[0]}`],
    ["time of a training step", recent.length ? duration(mean(recent)) : "–", "last 10"],
    ["since the first record", duration(feed.times.at(-1) - feed.times[0])],
  ]);
}

export const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/** A form for other metrics; which ones is in the address. */
export function picker(names, redraw) {
  const change = (name, on) => {
    toggle("metric", name, on);
    redraw();
  };
  const add = (event) => {
    event.preventDefault();
    const name = event.target.elements.metric.value.trim();
    if (names.includes(name) && !chosen().includes(name)) change(name, true);
  };
  return h("section", {},
    h("h2", {}, "Another metric"),
    h("form", { class: "filters", onsubmit: add },
      h("label", {}, h("span", {}, `one of ${names.length}`), h("input", { type: "text", name: "metric", list: "metric-names", size: 40, autocomplete: "off", spellcheck: "false" })),
      h("datalist", { id: "metric-names" }, names.map((name) => h("option", { value: name }))),
      h("button", {}, "Show it"),
      chosen().map((name) => h("button", { type: "button", onclick: () => change(name, false), "aria-label": `remove ${name}` }, `${name} ×`))));
}
