import { get, here, runs } from "../api.js";
import { h, facts, number, signed, duration } from "../dom.js";
import { outcome } from "./trajectories.js";
import { spot } from "./pair.js";

export const title = "Trajectory";
const WIDEST = 70;

export async function open({ rest }) {
  const [kind, step, index] = rest;
  const found = await get(`/api/trajectories/${encodeURIComponent(kind)}/${encodeURIComponent(step)}/${encodeURIComponent(index)}`);
  const link = (to) => `#/trajectory/${kind}/${step}/${to}`;
  const at = Number(index), previous = at > 0 ? link(at - 1) : null, next = at + 1 < found.count ? link(at + 1) : null;
  const { record, summary } = found;
  const element = h("div", {},
    h("div", { class: "bar-buttons" },
      h("a", { href: `#/trajectories?${new URLSearchParams(kind === "training" ? { step } : { kind, step })}` }, kind === "training" ? `training step ${step}` : `validation at training step ${step}`),
      h("span", { class: "soft small" }, `${at + 1} of ${found.count}`),
      previous && h("a", { class: "button", href: previous }, "← previous"),
      next && h("a", { class: "button", href: next }, "next →"),
      h("span", { class: "soft small" }, "also with the arrow keys")),
    h("h2", { class: "wrap" }, summary.query || summary.task_id),
    h("p", { class: "soft wrap" }, `${summary.task_id} · graded by ${summary.evaluator} `, summary.synthetic && h("span", { class: "tag" }, "synthetic task"), " ",
      h("a", { class: "inline", href: `#/task?${new URLSearchParams({ id: summary.task_id, kind })}` }, `this task at all training steps${runs.length > 1 ? " and in all runs" : ""}`)),
    facts([
      ["outcome", outcome(summary), record.outcome?.reason],
      ["ended", summary.stop_reason.replace("_", " "), record.attempts > 1 && `attempt ${record.attempts}`],
      ["turns", number(summary.turns)],
      ["sampled tokens", number(summary.tokens)],
      ["time", duration(summary.seconds)],
      ["labels", labelStatus(record)],
    ]),
    summary.error && h("p", { class: "bad wrap" }, record.error),
    group(found, link, at, kind, step),
    guidance(record, kind),
    gateway(record),
    h("h2", {}, "Conversation"),
    conversation(record, found.explained),
    rows(found, kind));
  return { element, key(event) {
    const to = { ArrowLeft: previous, ArrowRight: next }[event.key];
    if (to) location.hash = to;
  } };
}

function labelStatus(record) {
  const found = record.attribution;
  if (!found) return "not asked for";
  const took = found.cached ? "from the cache" : found.calls ? `${found.calls} call${found.calls > 1 ? "s" : ""}, ${duration(found.seconds)}` : "";
  return [found.status, took || found.reason ? h("span", { class: "soft" }, ` ${found.reason || took}`) : null];
}

function group(found, link, at, kind, step) {
  if (found.siblings.length < 2) return null;
  return h("section", { "aria-label": "the rollouts of this task" },
    h("p", { class: "soft small" }, "The rollouts of this task in this training step (their mean is what each is compared with):"),
    h("ul", { class: "group" }, found.siblings.map((other) => h("li", {},
      h("a", { href: link(other.index), "aria-current": other.index === at ? "true" : null },
        `${other.rollout}: `, h("span", { class: other.success === null ? "warn" : other.success ? "good" : "bad" }, other.success === null ? "did not happen" : number(other.score, 2)),
        other.guided && " guided"),
      other.index !== at && h("a", { class: "beside", href: `#/pair?${new URLSearchParams({ a: spot(here, kind, step, at), b: spot(here, kind, step, other.index) })}`, "aria-label": `beside rollout ${other.rollout}`, title: "side by side" }, "⇄")))));
}

function guidance(record, kind) {
  const given = record.guidance;
  if (!given?.injected) return null;
  const what = kind !== "training" ? "shown to the policy in this rollout" : given.keep ? "kept in the training prompt" : "stripped: the training prompt does not have it";
  const stands = record.messages.some((message) => typeof message.content === "string" && message.content.startsWith(given.injected));
  return h("section", {}, h("h2", {}, "Experience"),
    h("p", { class: "small wrap" }, h("span", { class: "tag info" }, what), stands ? " It stands below, where it was put in. From the pool: " : " From the pool: ",
      (given.experience_ids ?? []).map((id) => [h("a", { class: "inline", href: `#/experience?text=${encodeURIComponent(id)}` }, id.slice(0, 8)), " "])),
    !stands && h("div", { class: `guidance ${given.keep || kind !== "training" ? "" : "stripped"}` }, h("div", { class: "said" }, given.text)));
}

/** What the gateway saw of an agent of the user's own: chains of calls, each of which becomes a training sample. */
function gateway(record) {
  const told = record.gateway;
  if (!told) return null;
  const counts = (named) => Object.entries(named ?? {}).map(([name, n]) => `${name} × ${n}`).join(", ");
  return h("section", {}, h("h2", {}, "Gateway"),
    facts([
      ["chains of calls", number(told.chains), "a training sample each"],
      ["calls", number(told.calls)],
      counts(told.ignored) && ["fields ignored", counts(told.ignored)],
      counts(told.refused) && ["requests refused", counts(told.refused)],
    ]),
    (told.differences ?? []).length > 0 && h("details", {}, h("summary", {}, `Why chains began anew (${told.differences.length})`),
      h("pre", { class: "log", tabindex: "0", "aria-label": "differences between calls" }, JSON.stringify(told.differences, null, 2))));
}

function conversation(record, explained) {
  const messages = record.messages;
  const first = messages.findIndex((m) => m.role === "assistant");
  const opening = first < 0 ? messages : messages.slice(0, first);
  const good = record.attribution?.good ?? [], analyses = record.attribution?.analyses ?? [];
  const advantages = record.credit?.advantages ?? [], rewards = record.credit?.step_rewards ?? [];
  const largest = Math.max(...advantages.map(Math.abs), 1e-9);
  return h("div", {},
    h("article", { class: "turn" }, h("div", { class: "turn-head" }, h("h3", {}, "Opening")),
      h("div", { class: "body" }, opening.map((m) => said(m, record.guidance)))),
    record.steps.map((s, i) => h("article", { class: `turn ${good.length ? (good[i] ? "good-step" : "bad-step") : ""}` },
      h("div", { class: "turn-head" },
        h("h3", {}, s.kind === "action" || !s.kind ? `Turn ${s.index}` : `Turn ${s.index}: ${s.kind}`),
        good.length > 0 && h("span", { class: `tag ${good[i] ? "good" : "bad"}` }, good[i] ? "GOOD" : "BAD"),
        advantages[i] !== undefined && advantage(advantages[i], largest),
        rewards[i] !== undefined && h("span", { class: "soft small" }, `own reward ${signed(rewards[i])}`),
        s.reward !== 0 && h("span", { class: "soft small" }, `environment ${signed(s.reward, 2)}`),
        s.truncated && h("span", { class: "tag warn" }, "cut at the token limit"),
        (s.problems ?? []).length > 0 && h("span", { class: "tag warn" }, `calls: ${s.problems.join(", ").replaceAll("_", " ")}`),
        h("span", { class: "soft small" }, `${s.action_tokens} tokens, ${duration(s.generate_s)} + ${duration(s.env_s)}`)),
      h("div", { class: "body" },
        explained[i] && sum(explained[i]),
        h("div", { class: "said" }, s.action || "(nothing)"),
        s.observation && h("div", { class: "said answer" }, s.observation),
        analyses[i] && h("p", { class: "small soft wrap" }, `Judge: ${analyses[i]}`)))),
    (record.context_edits ?? []).length > 0 && h("details", {}, h("summary", {}, `What the context template changed (${record.context_edits.length})`),
      h("pre", { class: "log", tabindex: "0", "aria-label": "changes" }, JSON.stringify(record.context_edits, null, 2))));
}

function said(message, given) {
  const text = typeof message.content === "string" ? message.content : JSON.stringify(message.content);
  const injected = given?.injected;
  const has = injected && text.startsWith(injected);
  return h("div", {}, h("span", { class: "who" }, message.role),
    has && h("div", { class: `guidance ${given.keep ? "" : "stripped"}` }, h("span", { class: "tag info" }, "experience, injected here"), h("div", { class: "said" }, injected.trim())),
    h("div", { class: "said" }, has ? text.slice(injected.length) : text));
}

function advantage(value, largest) {
  const side = value < 0 ? "--minus" : "--plus";
  return h("span", { class: "advantage" }, `advantage ${signed(value)}`,
    h("i", { style: { width: `${Math.max(2, (WIDEST * Math.abs(value)) / largest)}px`, background: `rgba(var(${side}), .8)` } }));
}

/** An advantage as the sum that it is: outcome + label + what comes after, as advantage_processor.explain takes it apart. */
function sum(one) {
  if (one.outcome === null) return null;
  const term = (value, text) => [h("span", {}, h("b", {}, signed(value)), ` ${text}`), " "];
  const terms = [term(one.outcome, "outcome"), term(one.label, "label"), term(one.later, "what comes after")];
  return h("p", { class: "sum small", title: "numbers are rounded" },
    one.scale !== null ? ["( ", terms, h("span", {}, `) × ${number(one.scale)} by later stages`), " "] : terms,
    one.rest !== null && term(one.rest, "by later stages"), h("span", {}, "= ", h("b", {}, signed(one.advantage)), " advantage"));
}

function rows(found, kind) {
  if (kind !== "training") return null;
  const heading = h("h2", {}, "What was trained on");
  if (!found.rows.length) {
    const why = found.samples_dumped ? "No sample of this rollout was trained on: it failed, or its group was withdrawn." : "Tokens, masks and advantages of each token are kept with trainer.dump_samples=true (as on a CPU), the newest GB of them; of this training step there are none.";
    return h("section", {}, heading, h("p", { class: "soft" }, why));
  }
  return h("section", {}, heading,
    h("p", { class: "small soft" }, "Advantage of each sampled token: ", h("span", { class: "scale" }), "negative to positive; what is grey was not sampled and is masked out."),
    !found.rows[0].is_text && h("p", { class: "small warn" }, "No tokenizer was found, so tokens are numbers."),
    found.rows.length > 1 && h("p", { class: "small soft" }, `The episode became ${found.rows.length} training samples${found.record.gateway ? ", one a chain of calls" : ""}; turns are numbered through all of them.`),
    found.rows.map((row, i) => sample(row, i, found.rows.length)));
}

function sample(row, number_, count) {
  const { text, mask, step, advantage: values, log_prob: logs } = row.tokens;
  const largest = Math.max(...values.map((v, i) => (mask[i] ? Math.abs(v) : 0)), 1e-9);
  const fact = h("div", { class: "token-fact" }, "Point at a token.");
  const body = h("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": `tokens of training sample ${number_ + 1}, arrow keys move along them` });
  const gap = row.is_text ? "" : " ";
  body.append(h("span", { class: "masked" }, row.prompt.join(gap)));
  let last = -1;
  const spans = text.map((token, i) => {
    const t = token + gap;
    if (mask[i] && step[i] !== last) body.append(h("span", { class: "step" }, `turn ${step[i]}`));
    if (mask[i]) last = step[i];
    const side = values[i] < 0 ? "--minus" : "--plus";
    const span = mask[i]
      ? h("span", { "data-i": i, style: { background: `rgba(var(${side}), ${(0.08 + (0.67 * Math.abs(values[i])) / largest).toFixed(3)})` } }, t)
      : h("span", { class: "masked", "data-i": i }, t);
    body.append(span);
    return span;
  });
  let at = -1;
  const tell = (i) => {
    spans[at]?.classList.remove("at");
    at = i;
    spans[i]?.classList.add("at");
    fact.textContent = spans[i] === undefined ? "Point at a token."
      : mask[i] ? `token ${i} ${JSON.stringify(text[i])} · turn ${step[i]} · advantage ${signed(values[i], 4)} · log-prob ${logs[i].toFixed(4)} · probability ${(100 * Math.exp(logs[i])).toFixed(1)} %`
        : `token ${i} ${JSON.stringify(text[i])} · masked: not sampled by the policy`;
  };
  body.addEventListener("pointerover", (event) => event.target.dataset.i !== undefined && tell(Number(event.target.dataset.i)));
  body.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    tell(Math.min(Math.max(at + by, 0), spans.length - 1));
  });
  return h("div", { class: "panel" }, count > 1 && h("h3", {}, `Training sample ${number_ + 1} of ${count}`), body, fact,
    row.cut > 0 && h("p", { class: "small soft" }, `${number(row.cut)} tokens are not shown (the beginning of the prompt, the end of the response).`));
}
