import { get, runs } from "../api.js";
import { h, state, number, signed } from "../dom.js";
import { of_run } from "../place.js";
import { outcome } from "./trajectories.js";

export const title = "Two rollouts";

/** Where a rollout is, as the address has it: KIND/STEP/INDEX@RUN. */
export const spot = (run, kind, step, index) => `${kind}/${step}/${index}@${runs[run]?.name ?? ""}`;

export async function open({ query }) {
  const sides = await Promise.all([query.get("a"), query.get("b")].map(side));
  if (sides.some((one) => one === null)) return { element: state("Two rollouts are needed.", "Mark them on the page of a task, or take ⇄ beside a rollout of a group.") };
  const [a, b] = sides, first = difference(a.record, b.record);
  const count = Math.max(a.record.steps.length, b.record.steps.length);
  const said = first === null ? `They are the same, turn by turn${a.summary.score === b.summary.score ? "" : "; their outcomes differ"}.` : first.turn < 0 ? "They differ before the first turn: in their openings." : `They first differ at turn ${first.turn}: ${first.why}.`;
  const element = h("div", {},
    h("h2", {}, "Two rollouts side by side"),
    h("p", {}, said, first !== null && first.turn >= 0 && [" ", h("button", { type: "button", onclick: () => element.querySelector(".first-difference").scrollIntoView({ block: "center" }) }, "Go there")]),
    h("div", { class: "sides" }, [a, b].map(head)),
    h("div", { class: `sides ${first?.turn === -1 ? "first-difference" : ""}` }, [a, b].map((one) => h("details", {}, h("summary", {}, "Opening"), h("div", { class: "said" }, opening(one.record))))),
    Array.from({ length: count }, (_, i) => h("section", { class: first?.turn === i ? "first-difference" : i > (first?.turn ?? Infinity) ? "after" : "", "aria-label": `turn ${i}` },
      h("h3", {}, `Turn ${i}`, first?.turn === i && [" ", h("span", { class: "tag warn" }, `first difference: ${first.why}`)]),
      h("div", { class: "sides" }, [a, b].map((one) => turn(one, i))))));
  return { element };
}

async function side(text) {
  const found = /^(training|validation)\/(\d+)\/(\d+)@(.*)$/.exec(text ?? "");
  if (!found) return null;
  const run = runs.findIndex((one) => one.name === found[4]);
  if (run < 0) throw new Error(`${found[4]} is not among the runs that this page shows`);
  const path = found.slice(1, 4).join("/");
  return { ...(await get(`/api/trajectories/${path}`, {}, { run })), run, path };
}

/** The first turn at which two rollouts differ, -1 for their openings, and in what; null if they never do. */
function difference(a, b) {
  if (opening(a) !== opening(b)) return { turn: -1, why: "the openings" };
  for (let i = 0; i < Math.max(a.steps.length, b.steps.length); i += 1) {
    const [one, other] = [a.steps[i], b.steps[i]];
    if (!one || !other) return { turn: i, why: "one has ended" };
    if (one.action.trim() !== other.action.trim()) return { turn: i, why: "what the policy says" };
    if (one.observation !== other.observation) return { turn: i, why: "what the environment answers" };
  }
  return null;
}

/** What stands before the first action, without guidance, which is what often differs on purpose. */
function opening(record) {
  const first = record.messages.findIndex((m) => m.role === "assistant");
  const injected = record.guidance?.injected ?? "";
  return (first < 0 ? record.messages : record.messages.slice(0, first)).map((m) => {
    const text = typeof m.content === "string" ? m.content : JSON.stringify(m.content);
    return injected && text.startsWith(injected) ? text.slice(injected.length) : text;
  }).join("\n\n");
}

function head({ record, summary, run, path }) {
  return h("div", { class: "panel" },
    h("p", {}, h("a", { class: "inline", href: `${runs.length > 1 ? of_run(runs[run].name, "") : ""}#/trajectory/${path}` }, `${path.startsWith("validation") ? "validation at " : ""}training step ${summary.step}, rollout ${summary.rollout}`), " ", outcome(summary)),
    h("p", { class: "small soft wrap" }, [runs.length > 1 && runs[run].name, summary.task_id, `${number(summary.turns)} turns`, record.guidance?.injected && "guided"].filter(Boolean).join(" · ")));
}

function turn({ record, explained }, i) {
  const step = record.steps[i], good = record.attribution?.good?.[i];
  if (!step) return h("div", { class: "panel soft small" }, "It has ended before.");
  return h("div", { class: "panel" },
    h("p", { class: "small soft" }, good !== undefined && [h("span", { class: `tag ${good ? "good" : "bad"}` }, good ? "GOOD" : "BAD"), " "], explained[i] && `advantage ${signed(explained[i].advantage)}`),
    h("div", { class: "said" }, step.action || "(nothing)"), step.observation && h("div", { class: "said answer" }, step.observation));
}
