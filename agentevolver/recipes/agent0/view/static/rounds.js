import { get } from "../../api.js";
import { chart } from "../../chart.js";
import { h, facts, table, select, state, failure, number, percent, duration } from "../../dom.js";
import { keep } from "../../place.js";

const PAGE = 50;

export async function open({ query }) {
  const element = h("div"), top = h("div"), list = h("div");
  let found = null, browse = null;
  const look = async () => {
    found = await get("/api/rounds");
    if (!top.querySelector("svg:hover")) top.replaceChildren(...summary(found));
    const pools = (found.rounds ?? []).filter((r) => r.pool.labelled);
    if (!pools.length) return list.replaceChildren();
    if (browse) return browse.update(pools);
    browse = browser(pools, query);
    list.replaceChildren(browse.element);
    await browse.load(false);
  };
  await look();
  element.append(top, list);
  return { element, update: async (changed) => changed.has("rounds") && (await look()) };
}

function summary({ exists, problem, state: how, best, rounds }) {
  const heading = h("h2", {}, "Rounds");
  if (!exists) return [heading, state("This run has no rounds.", "recipes.agent0.enable trains a proposer and an executor by turns.")];
  const trained = rounds.filter((r) => r.round > 0);
  return [heading,
    problem && h("p", { class: "bad wrap", role: "alert" }, problem),
    facts([
      ["rounds begun", number(trained.length), how],
      best && ["best round", number(best.round), best.success === null ? "" : percent(best.success)],
    ]),
    h("div", { class: "charts" }, charts(rounds)),
    h("h2", {}, "Each round"), rounds.length ? each(rounds) : state("No round is recorded yet."),
    best?.checkpoint && h("p", { class: "small soft wrap" }, `Best executor: ${best.checkpoint}`),
  ].filter(Boolean);
}

function charts(rounds) {
  let before = 0;
  const rewards = rounds.filter((r) => r.rewards.length).map((r) => {
    const points = r.rewards.map(([step, value]) => [before + step, value]);
    before = points.at(-1)[0];
    return { name: `round ${r.round}`, points, dots: true };
  });
  const splits = [...new Set(rounds.flatMap((r) => Object.keys(r.success)))];
  const success = splits.map((split) => {
    const own = rounds.filter((r) => r.success[split]).map((r) => [r.round, r.success[split]]);
    return { name: split, dots: true, points: own.map(([x, s]) => [x, s.mean]), errors: own.map(([x, s]) => [x, s.mean - s.se, s.mean + s.se]) };
  });
  const of = (key, name) => ({ name, dots: true, points: rounds.filter((r) => r.pool[key] !== null && r.pool[key] !== undefined).map((r) => [r.round, r.pool[key]]) });
  const share = { xName: "round", low: 0, high: 1 }, count = { xName: "round", low: 0 };
  return [
    chart(rewards, { title: "Proposer's reward", note: "training steps of all rounds", empty: "No step of a proposer is recorded." }),
    chart(success, { ...share, title: "Executor's success", note: "bars: one standard error", empty: "No round is evaluated yet." }),
    chart([of("calls", "kept"), of("calls_measured", "measured")], { ...count, title: "Tool calls for proposals", note: "of an episode of the executor" }),
    chart([of("p", "kept"), of("p_measured", "measured")], { ...share, title: "Mean p", note: "share of episodes that give the label" }),
    chart([of("right", "labels"), of("vote_right", "votes")], { ...share, title: "Accuracy where the truth is known", note: "labels of tasks, votes of what was measured" }),
  ];
}

function each(rounds) {
  return table("each round", [
    { name: "round", class: "num", cell: (r) => (r.round ? r.round : "base") },
    { name: "kept", class: "num", cell: (r) => (r.pool.labelled ? `${number(r.pool.kept)} of ${number(r.pool.labelled)}` : "–") },
    { name: "dropped", class: "text small", cell: (r) => (r.pool.dropped ?? []).map(([reason, n]) => `${number(n)} ${reason}`).join(", ") || "–" },
    { name: "labels right", class: "num", cell: (r) => (r.pool.right_known ? `${percent(r.pool.right)} of ${number(r.pool.right_known)}` : "–") },
    { name: "votes right", class: "num", cell: (r) => (r.pool.vote_known ? `${percent(r.pool.vote_right)} of ${number(r.pool.vote_known)}` : "–") },
    { name: "p", class: "num", cell: (r) => number(r.pool.p, 2) },
    { name: "calls", class: "num", cell: (r) => number(r.pool.calls, 2) },
    { name: "executor", class: "num", cell: (r) => Object.entries(r.success).map(([split, s]) => h("div", {}, `${split} ${percent(s.mean)} ± ${number(100 * s.se, 1)}`)) },
    { name: "stages", class: "text small", cell: (r) => r.stages.map(stage) },
  ], rounds);
}

function stage(s) {
  const counts = Object.entries(s.counts).map(([name, n]) => `${number(n)} ${name}`).join(", ");
  return h("div", { class: "wrap", title: s.checkpoint || null },
    `${s.name} `, h("span", { class: s.state === "done" ? "good" : s.state === "skipped" ? "warn" : "soft" }, s.state),
    s.seconds !== null && ` ${duration(s.seconds)}`, counts && `: ${counts}`, s.reason && `: ${s.reason}`,
    s.checkpoint && h("span", { class: "soft" }, ` → ${s.checkpoint}`));
}

function browser(pools, query) {
  const wanted = { round: query.get("round") ?? String(pools.at(-1).round), fate: query.get("fate") ?? "", reason: query.get("reason") ?? "" };
  const rows = h("div", { class: "cards" }), holder = h("div");
  let offset = 0, known = "";
  const load = async (more) => {
    offset = more ? offset + PAGE : 0;
    try {
      const found = await get(`/api/rounds/${encodeURIComponent(wanted.round)}/records`, { fate: wanted.fate, reason: wanted.reason, offset, limit: PAGE });
      const shown = Math.min(offset + PAGE, found.total);
      rows.querySelector(".bar-buttons")?.remove();
      if (!more) rows.replaceChildren();
      rows.append(...found.rows.map(card), h("div", { class: "bar-buttons" }, h("span", { class: "soft small" }, `${number(shown)} of ${number(found.total)}`),
        shown < found.total && h("button", { onclick: () => load(true) }, "Show more")));
      if (!found.total) rows.replaceChildren(state("No proposal fits."));
    } catch (error) {
      rows.replaceChildren(failure(error));
    }
  };
  const change = (event) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget);
    Object.assign(wanted, { round: data.get("round"), fate: data.get("fate"), reason: data.get("reason") });
    keep(wanted);
    load(false);
  };
  const form = (now) => {
    const reasons = [...new Set(now.flatMap((r) => r.pool.dropped.map(([reason]) => reason)))].filter(Boolean).sort();
    return h("form", { class: "filters", role: "search", onsubmit: change, onchange: change },
      select("round", "round", now.map((r) => [String(r.round), `round ${r.round}`]), wanted.round),
      select("fate", "fate", [["", "any"], ["kept", "kept"], ["dropped", "dropped"]], wanted.fate),
      select("reason", "dropped because", [["", "any"], ...reasons.map((reason) => [reason, reason.length > 30 ? `${reason.slice(0, 30)}…` : reason])], wanted.reason),
      h("button", {}, "Show"));
  };
  const draw = (now) => {
    known = JSON.stringify(now.map((r) => [r.round, r.pool]));
    holder.replaceChildren(form(now));
  };
  draw(pools);
  return {
    element: h("section", {}, h("h2", {}, "Proposals"), holder, rows),
    load,
    async update(now) {
      // What is being read or chosen stays.
      const busy = offset > 0 || holder.contains(document.activeElement) || rows.contains(document.activeElement) || rows.querySelector("details[open]");
      if (busy || JSON.stringify(now.map((r) => [r.round, r.pool])) === known) return;
      draw(now);
      await load(false);
    },
  };
}

/** A proposal is what a policy wrote: each text is text, in a direction of its own. */
function card(row) {
  const text = (value) => h("bdi", { class: "wrap" }, value);
  return h("article", { class: "card" },
    h("h3", { class: "wrap" }, row.question ? text(row.question) : h("span", { class: "soft" }, "no question")),
    h("p", { class: "small wrap" }, "label ", row.label === null ? "–" : text(row.label), right(row.right),
      row.executed !== null && [" · program gave ", text(row.executed)], row.proposer_answer !== null && [" · proposer said ", text(row.proposer_answer)]),
    row.votes.length > 0 && h("p", { class: "small wrap" }, "votes ", row.votes.map(([answer, n], i) => [i ? ", " : "", text(answer), ` × ${number(n)}`]),
      row.votes_left_out > 0 && ` and ${number(row.votes_left_out)} other answers`, right(row.vote_right)),
    row.drop_detail && h("p", { class: "small bad wrap" }, text(row.drop_detail)),
    row.program && row.program !== row.question && h("details", {}, h("summary", {}, "Its program"), h("p", { class: "said" }, text(row.program))),
    h("div", { class: "meta" },
      row.kept ? h("span", { class: "tag good" }, "kept") : h("span", { class: "tag bad", style: { whiteSpace: "normal" } }, "dropped: ", text(row.drop_reason)),
      h("span", { class: "wrap" }, row.task_id), h("span", { class: "wrap" }, row.seed),
      row.k > 0 && h("span", {}, `p ${number(row.p_hat, 2)}, ${number(row.n_answered)} of ${number(row.k)} answered`),
      row.mean_tool_calls !== null && h("span", {}, `${number(row.mean_tool_calls, 1)} tool calls`),
      row.cut && h("span", { class: "warn" }, "cut; all of it is in pool.jsonl")));
}

const right = (value) => value !== null && h("span", { class: value ? "good" : "bad" }, value ? " right" : " wrong");
