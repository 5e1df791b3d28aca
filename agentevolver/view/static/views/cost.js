import { MetricsFeed, get } from "../api.js";
import { chart } from "../chart.js";
import { h, facts, table, state, number, percent } from "../dom.js";

export const title = "LLM cost";

export async function open() {
  const feed = new MetricsFeed(["llm/*"]);
  const element = h("div");
  const look = async () => {
    const [found] = await Promise.all([get("/api/usage"), feed.update()]);
    if (!element.querySelector("svg:hover")) element.replaceChildren(...content(found, feed));
  };
  await look();
  return { element, update: async (changed) => (changed.has("usage") || changed.has("ledger") || changed.has("metrics")) && (await look()) };
}

function content({ exists, roles, budget }, feed) {
  const heading = h("h2", {}, "What the language models cost");
  if (!exists || !roles.length) return [heading, state("Nothing was spent (yet).", "A run whose configuration asks no language model has no ledger.")];
  const sum = (key) => roles.reduce((total, role) => total + role[key], 0);
  const tokens = sum("prompt_tokens") + sum("completion_tokens"), cost = sum("cost");
  const priced = cost > 0;
  const names = (what) => feed.names_like(new RegExp(`^llm/[^/]+/${what}$`));
  const lines = (what) => names(what).map((name) => ({ name: name.split("/")[1], points: feed.points(name) }));
  const charts = [
    feed.points("llm/spent_tokens").length > 0 && chart([{ name: "tokens, all roles", points: feed.points("llm/spent_tokens") }], { title: "Tokens spent", low: 0 }),
    priced && feed.points("llm/spent_cost").length > 0 && chart([{ name: "cost, all roles", points: feed.points("llm/spent_cost") }], { title: "Cost", low: 0 }),
    names("latency_mean").length > 0 && chart(lines("latency_mean"), { title: "Time of a call", note: "seconds, mean of the last calls", low: 0 }),
    names("errors").length > 0 && chart(lines("errors"), { title: "Failed calls", note: "since the process began", low: 0 }),
  ].filter(Boolean);
  return [heading, facts([
    ["calls", number(sum("calls"))],
    ["tokens", number(tokens), budget.max_tokens && `of ${number(budget.max_tokens)}: ${percent(tokens / budget.max_tokens)}`],
    ["cost", priced ? number(cost) : "no prices are set", budget.max_cost && `of ${number(budget.max_cost)}`],
  ]), table("cost by role", [
    { name: "role", cell: (r) => r.role },
    { name: "calls", class: "num", cell: (r) => number(r.calls) },
    { name: "prompt tokens", class: "num", cell: (r) => number(r.prompt_tokens) },
    { name: "completion tokens", class: "num", cell: (r) => number(r.completion_tokens) },
    { name: "tokens a call", class: "num", cell: (r) => number(Math.round((r.prompt_tokens + r.completion_tokens) / Math.max(1, r.calls))) },
    { name: "share of tokens", class: "num", cell: (r) => percent((r.prompt_tokens + r.completion_tokens) / Math.max(1, tokens)) },
    { name: "cost", class: "num", cell: (r) => (priced ? number(r.cost, 4) : "–") },
  ], roles), h("p", { class: "small soft" }, " "), h("div", { class: "charts" }, charts)];
}
