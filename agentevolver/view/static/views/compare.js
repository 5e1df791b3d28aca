import { MetricsFeed, get, here, runs } from "../api.js";
import { chart, colour, smooth } from "../chart.js";
import { h, facts, table, select, state, failure, number, percent } from "../dom.js";
import { keep, of_run, place, toggle } from "../place.js";
import { bound, mean, picker, validation_name, validation_names } from "./curves.js";

export const title = "Compare";
const NAMES = ["rollout/success", "rollout/reward/mean", "val-core/*", "actor/entropy", "actor/kl_loss", "timing_s/step", "rollout/steps/mean"];
const CURVES = [["rollout/reward/mean", "Training reward"], ["actor/entropy", "Entropy of the policy", 0], ["actor/kl_loss", "KL loss", 0], ["rollout/steps/mean", "Turns of an episode", 0], ["timing_s/step", "Time of a training step, seconds", 0]];
const SMOOTH = 5;
const BY = [["family", "family of task"], ["level", "level"], ["environment", "world (environment)"], ["origin", "original or synthetic"], ["task", "task"]];
const OF = [["validation", "the newest validation"], ["training", "the last 10 training steps"]];

const chosen = () => place().query.getAll("metric");

export async function open() {
  const element = h("div"), feeds = runs.map((_, i) => new MetricsFeed([...NAMES, ...chosen()], i));
  const names = [...new Set((await Promise.all(runs.map((_, i) => get("/api/metrics/names", {}, { run: i })))).flat())].sort();
  const differing = runs.length > 1 ? await get("/api/runs/differences") : [];
  const shares = h("div");
  const draw = () => element.replaceChildren(...content(feeds, differing, names, redraw), shares);
  const redraw = async () => {
    for (const feed of feeds) Object.assign(feed, { names: [...NAMES, ...chosen()], steps: [] });
    await Promise.all(feeds.map((feed) => feed.update()));
    draw();
    await success(shares);
  };
  await redraw();
  return {
    element,
    async update() {
      const before = feeds.map((feed) => feed.steps.length).join();
      await Promise.all(feeds.map((feed) => feed.update()));
      if (feeds.map((feed) => feed.steps.length).join() !== before && !element.contains(document.activeElement) && !element.querySelector("svg:hover, details[open]")) draw();
    },
  };
}

/** A run that validates on one split alone does not name it in its metrics: it is named here, so that the curve stands beside those of runs with several. */
const named = (run, name) => (run.split ? name.replace(/^(val-core\/[^/]+)\/((?:guided\/)?reward\/)/, `$1/${run.split}/$2`) : name);
const recorded = (run, name) => (run.split && name.startsWith("val-core/") ? name.replace(`/${run.split}/`, "/") : name);

const shown = () => runs.map((run, i) => ({ ...run, i })).filter((run) => !place().query.getAll("without").includes(run.name));

function content(feeds, differing, names, redraw) {
  const heading = h("h2", {}, runs.length > 1 ? "Runs beside each other" : "Success by kind of task");
  if (runs.length < 2) return [heading, h("p", { class: "soft" }, "Several runs stand beside each other when the page is opened with several folders, or with one that holds them: ", h("code", {}, "agentevolver view RUN RUN"), ".")];
  const line = (run, name) => ({ name: run.name, colour: colour(run.i), points: feeds[run.i].points(recorded(run, name)) });
  const smoothed = (run, name) => [{ ...line(run, name), group: run.name, faint: true, quiet: true }, { ...line(run, name), points: smooth(feeds[run.i].points(name), SMOOTH) }];
  const validations = [...new Set(feeds.flatMap((feed, i) => { const { means, bests } = validation_names(feed); return (place().query.has("best") ? [...means, ...bests] : means).map((name) => named(runs[i], name)); }))];
  const several = new Set(validations.map((name) => name.split("/")[1])).size > 1;
  const charts = [
    ...validations.map((name) => { const series = shown().map((run) => ({ ...line(run, name), dots: true })); return chart(series, { title: `Validation: ${validation_name(name, several)}`, low: 0, high: bound(series) }); }),
    chart(shown().flatMap((run) => smoothed(run, "rollout/success")), { title: "Training success", note: `mean of ${SMOOTH}`, low: 0, high: 1 }),
    ...CURVES.map(([name, text, low]) => chart(shown().map((run) => line(run, name)), { title: text, low })),
    ...chosen().map((name) => chart(shown().map((run) => line(run, name)), { title: name, empty: "No run records it." })),
  ];
  return [heading, which(redraw), overview(feeds, validations, several), h("h2", {}, "Curves"),
    h("label", { class: "check" }, h("input", { type: "checkbox", checked: place().query.has("best"), onchange: (event) => { keep({ best: event.target.checked ? "1" : null }); redraw(); } }), "best of k too"),
    h("div", { class: "charts" }, charts), picker(names, redraw), h("h2", {}, "Configurations"), differences(differing)];
}

function which(redraw) {
  return h("fieldset", { class: "which" }, h("legend", {}, "Runs"), runs.map((run, i) => h("label", { class: "check" },
    h("input", { type: "checkbox", checked: shown().some((one) => one.i === i), onchange: (event) => { toggle("without", run.name, !event.target.checked); redraw(); } }),
    h("i", { class: "swatch", style: { background: colour(i) } }), h("span", { class: "wrap" }, run.name))));
}

function overview(feeds, validations, several) {
  const last = (run, name) => feeds[run.i].last(recorded(run, name));
  const recent = (run) => feeds[run.i].points("rollout/success").slice(-10).map(([, y]) => y);
  return table("runs", [
    { name: "run", class: "wrap", cell: (run) => h("a", { class: "inline", href: of_run(run.name, "#/curves"), "aria-current": run.i === here ? "true" : null }, run.name) },
    { name: "state", cell: (run) => (run.running ? "running" : run.running === null ? "on another machine" : "not running") },
    { name: "training step", class: "num", cell: (run) => number(feeds[run.i].steps.at(-1)) },
    { name: "success, last 10 steps", class: "num", cell: (run) => (recent(run).length ? percent(mean(recent(run))) : "–") },
    ...validations.map((name) => ({ name: validation_name(name, several), class: "num", cell: (run) => percent(last(run, name)) })),
    { name: "time of a training step", class: "num", cell: (run) => (last(run, "timing_s/step") === null ? "–" : `${number(last(run, "timing_s/step"), 1)} s`) },
  ], shown());
}

function differences(rows) {
  const decisive = rows.filter((row) => row.decides), others = rows.filter((row) => !row.decides);
  const columns = [{ name: "key", class: "mono", cell: (row) => row.key }, ...shown().map((run) => ({ name: run.name, class: "text mono", cell: (row) => row.values[run.i] ?? h("span", { class: "soft" }, "not there") }))];
  return h("div", {},
    decisive.length ? table("configuration keys that decide what is learned", columns, decisive) : state("No key that decides what is learned differs."),
    others.length > 0 && h("details", { class: "below" }, h("summary", {}, `${number(others.length)} keys that only say how long, how fast and where`), table("other configuration keys", columns, others)));
}

/** Success of the shown runs by a kind of task, in a table that `place` fills. */
async function success(holder) {
  const { query } = place(), by = query.get("by") ?? "family", kind = query.get("of") ?? "validation";
  const change = (event) => {
    const data = new FormData(event.currentTarget);
    keep({ by: data.get("by"), of: data.get("of") });
    success(holder);
  };
  const form = h("form", { class: "filters", onchange: change, onsubmit: (event) => event.preventDefault() }, select("by", "by", BY, by), select("of", "of", OF, kind));
  const heading = runs.length > 1 ? h("h2", {}, "Success by kind of task") : null;
  try {
    const found = await Promise.all(shown().map(async (run) => ({ run, ...(await get(`/api/success/${kind}`, { by, last: kind === "validation" ? 1 : 10 }, { run: run.i })) })));
    const groups = [...new Set(found.flatMap((one) => one.groups.map((group) => group.name)))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const cell = (one, name) => {
      const group = one.groups.find((other) => other.name === name);
      if (!group) return "–";
      const idle = group.rollouts - group.acted;
      return [h("b", {}, group.success === null ? "not measured" : percent(group.success)), h("span", { class: "soft small" }, ` ${number(group.rollouts)} rollouts${idle ? ` (${number(idle)} never acted)` : ""}, ${number(group.tasks)} task${group.tasks === 1 ? "" : "s"}`)];
    };
    const link = (name) => (by === "task" ? h("a", { class: "inline", href: `#/task?${new URLSearchParams({ id: name, kind })}` }, name) : name || "not told");
    holder.replaceChildren(...[heading, form, groups.length
      ? table(`success by ${by}`, [{ name: by, class: "wrap", cell: link }, ...found.map((one) => ({ name: runs.length > 1 ? one.run.name : "success", cell: (name) => cell(one, name), value: (name) => one.groups.find((group) => group.name === name)?.success }))], groups)
      : state("No rollouts of it are kept.")].filter(Boolean));
  } catch (error) {
    holder.replaceChildren(form, failure(error));
  }
}
