import { MetricsFeed, get } from "../api.js";
import { chart } from "../chart.js";
import { h, facts, table, select, state, failure, number, percent } from "../dom.js";
import { keep } from "../place.js";

export const title = "Tasks";
const SAID = { explored: "explored trajectories", proposed: "proposed", parsed: "could be read", verified: "new when proposed", executed: "solution ran through", passed: "judge accepted", deduplicated: "still new", kept: "kept as tasks" };
const METRICS = ["task/*", "curriculum/*", "grader/*"];

export async function open({ query }) {
  const feed = new MetricsFeed(METRICS);
  const element = h("div"), top = h("div"), list = h("div", {});
  let overview = null;
  const look = async () => {
    [overview] = await Promise.all([get("/api/tasks"), feed.update()]);
    top.replaceChildren(...summary(overview, feed));
  };
  await look();
  element.append(top, list);
  const plans = overview.journals.flatMap((j) => j.plans.map((plan) => ({ journal: j.name, ...plan })));
  if (plans.length) list.append(await browser(plans, query));
  return {
    element,
    async update(changed) {
      if (!changed.has("tasks") && !changed.has("metrics")) return;
      const before = overview.journals.flatMap((j) => j.plans).length;
      if (!top.querySelector("svg:hover")) await look();
      if (overview.journals.flatMap((j) => j.plans).length !== before) {
        list.replaceChildren(await browser(overview.journals.flatMap((j) => j.plans.map((plan) => ({ journal: j.name, ...plan }))), query));
      }
    },
  };
}

function summary(overview, feed) {
  const { counts, rounds, journals, metrics } = overview;
  const plans = journals.flatMap((j) => j.plans.map((plan) => ({ ...plan, journal: j.name })));
  const out = [h("h2", {}, "Tasks"), facts([
    ["original training tasks", number(counts.train), apart(overview.environments, "train")],
    ["validation tasks", number(counts.validation), apart(overview.environments, "validation")],
    ["synthetic tasks", counts.synthetic === undefined ? "none" : number(counts.synthetic)],
    rounds.length > 0 && ["later rounds", rounds.map((n) => `+${n}`).join(" ")],
    metrics["questioning/tokens_per_task"] !== undefined && ["tokens per kept task", number(Math.round(metrics["questioning/tokens_per_task"]))],
    metrics["questioning/cost_per_task"] > 0 && ["cost per kept task", number(metrics["questioning/cost_per_task"])],
    overview.complete !== undefined && overview.complete !== null && ["making them", overview.complete ? "complete" : "ended early"],
  ])];
  for (const plan of plans) out.push(funnel(plan, overview.stages));
  if (!plans.length) out.push(state("This run made no tasks of its own.", "It trains on the environment's; task_manager.mixture.synthetic_data_ratio and task_manager.n make synthetic ones."));
  const curves = [
    ["Success by kind of task", /^task\/success\//, 1], ["Synthetic share of rollouts", /^task\/synthetic_share$/, 1],
    ["Curriculum: tasks known and resting", /^curriculum\/(known|resting)(\/|$)/], ["Curriculum: success over all groups", /^curriculum\/success(\/|$)/, 1], ["Agreement of graders", /^grader\//],
  ].map(([title_, pattern, high]) => [title_, feed.names_like(pattern), high]).filter(([, names]) => names.length);
  if (curves.length) {
    out.push(h("h2", {}, "In training"), h("div", { class: "charts" }, curves.map(([text, names, high]) =>
      chart(names.map((name) => ({ name: name.split("/").slice(1).join("/"), points: feed.points(name) })), { title: text, low: 0, high }))));
  }
  return out;
}

/** How many of each environment's, where there are several. */
const apart = (environments, kind) => Object.entries(environments).map(([name, counts]) => `${name} ${number(counts[kind] ?? 0)}`).join(", ");

function funnel(plan, stages) {
  const most = Math.max(...stages.slice(1).map((s) => plan.stages[s]), 1);
  let before = 0;
  return h("section", {},
    h("h2", {}, `Funnel: ${plan.environment}, ${number(plan.worlds)} worlds`, plan.failed > 0 && h("span", { class: "bad small" }, ` ${plan.failed} explorations failed`)),
    h("div", { class: "charts" },
      h("div", { class: "panel" }, h("div", { class: "funnel" }, stages.map((stage, i) => {
        const count = plan.stages[stage], share = i > 1 && before ? percent(count / before) : "";
        before = count;
        return h("div", { class: "stage" }, h("span", {}, SAID[stage] ?? stage), h("span", { class: "track" }, h("i", { style: { width: `${(100 * count) / (stage === "explored" ? Math.max(1, plan.explorations) : most)}%` } })),
          h("span", { class: "num" }, stage === "explored" ? `${number(count)} of ${number(plan.explorations)}` : number(count)), h("span", { class: "num soft small" }, share));
      })), h("p", { class: "small soft" }, "The percentage is of the stage before.")),
      h("div", { class: "panel" }, h("h3", {}, "Dropped because"),
        plan.dropped.length ? h("table", {}, h("tbody", {}, plan.dropped.slice(0, 12).map(([reason, count]) => h("tr", {}, h("td", { class: "wrap" }, reason), h("td", { class: "num" }, number(count))))))
          : h("p", { class: "soft" }, "Nothing was dropped."))));
}

async function browser(plans, query) {
  const wanted = { plan: Number(query.get("plan") ?? plans.length - 1), fate: query.get("fate") ?? "", text: query.get("text") ?? "" };
  const rows = h("div", { class: "cards" });
  let offset = 0;
  const load = async (more) => {
    offset = more ? offset + 50 : 0;
    const { journal, run } = plans[wanted.plan] ?? plans.at(-1);
    try {
      const found = await get("/api/tasks/proposals", { journal, run, fate: wanted.fate, text: wanted.text, offset });
      const cards = found.rows.map((row) => card(row, journal, run));
      const left = found.total - offset - found.rows.length;
      rows.querySelector(".bar-buttons")?.remove();
      if (!more) rows.replaceChildren();
      rows.append(...cards, h("div", { class: "bar-buttons" }, h("span", { class: "soft small" }, `${number(offset + found.rows.length)} of ${number(found.total)}`),
        left > 0 && h("button", { onclick: () => load(true) }, "Show more")));
      if (!found.total) rows.replaceChildren(state("No proposal fits."));
    } catch (error) {
      rows.replaceChildren(failure(error));
    }
  };
  const change = (event) => {
    event?.preventDefault();
    const data = new FormData(form);
    Object.assign(wanted, { plan: Number(data.get("plan") ?? wanted.plan), fate: data.get("fate"), text: data.get("text") });
    keep({ plan: data.get("plan"), fate: wanted.fate, text: wanted.text });
    load(false);
  };
  const form = h("form", { class: "filters", role: "search", onsubmit: change, onchange: change },
    plans.length > 1 && select("plan", "run of questioning", plans.map((p, i) => [String(i), `${p.journal}, ${p.run.slice(0, 8)}`]), String(wanted.plan)),
    select("fate", "fate", [["", "any"], ["kept", "kept"], ["dropped", "dropped"], ["open", "not decided yet"]], wanted.fate),
    h("label", {}, h("span", {}, "contains"), h("input", { type: "search", name: "text", value: wanted.text })),
    h("button", {}, "Search"));
  await load(false);
  return h("section", {}, h("h2", {}, "Proposals"), form, rows);
}

function card(row, journal, run) {
  const fate = row.fate === "kept" ? h("span", { class: "tag good" }, "kept") : row.fate === "dropped" ? h("span", { class: "tag bad" }, `dropped: ${row.stage}`) : h("span", { class: "tag" }, "not decided yet");
  const explored = h("details", { ontoggle: async (event) => {
    if (!event.target.open || event.target.dataset.loaded) return;
    event.target.dataset.loaded = "1";
    try {
      const steps = await get("/api/tasks/exploration", { journal, run, index: row.index });
      event.target.append(table("exploration", [
        { name: "", class: "num", cell: (s) => s.i }, { name: "phase", class: "soft", cell: (s) => s.phase },
        { name: "action", class: "text mono", cell: (s) => s.action }, { name: "answer", class: "text mono soft", cell: (s) => s.observation },
      ], steps.map((s, i) => ({ ...s, i }))));
    } catch (error) {
      event.target.append(failure(error));
    }
  } }, h("summary", {}, `The exploration it came from (number ${row.number} of ${row.seed})`));
  return h("article", { class: "card" },
    h("h3", { class: "wrap" }, row.query),
    h("ol", { class: "plain mono" }, row.solution.map((action) => h("li", { class: "wrap" }, action))),
    row.changes.length > 0 && h("p", { class: "small soft wrap" }, `Changes: ${row.changes.join("; ")}`),
    row.reason && h("p", { class: "small bad wrap" }, row.reason),
    explored,
    h("div", { class: "meta" }, fate, h("span", {}, row.task_id ?? row.seed), h("span", {}, `confidence ${number(row.confidence, 2)}`), row.grader && h("span", {}, `graded by ${row.grader}`)));
}
