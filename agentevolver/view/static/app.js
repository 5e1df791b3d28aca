// The frame: which view is shown, and when it looks again. A view is {title, open(place) -> page}; a page has `element`, `update(changed)`,
// and may have `close()`. `changed` holds the parts of the run of which there is something new.

import { connect, get, here, more, runs } from "./api.js";
import { h, failure, select, state, duration } from "./dom.js";
import { link_to, of_run, place, remember } from "./place.js";
import * as curves from "./views/curves.js";
import * as trajectories from "./views/trajectories.js";
import * as trajectory from "./views/trajectory.js";
import * as tasks from "./views/tasks.js";
import * as experience from "./views/experience.js";
import * as cost from "./views/cost.js";
import * as run from "./views/run.js";
import * as compare from "./views/compare.js";
import * as task from "./views/task.js";
import * as pair from "./views/pair.js";

// By name, with the places of their tabs. `added()` puts the views of recipes among them.
const VIEWS = { curves: [10, curves], compare: [20, compare], trajectories: [30, trajectories], tasks: [40, tasks], experience: [60, experience], cost: [70, cost], run: [80, run] };
// Views that a link leads to, and the tab that they belong to.
const BELOW = { trajectory: [trajectory, "trajectories"], task: [task, "trajectories"], pair: [pair, "trajectories"] };
const EVERY_MS = 2000, IDLE_MS = 10000;
let asked = Date.now(); // for runs that begin while the page is open
const main = document.getElementById("main");
const banner = document.getElementById("offline");
let page = null, versions = {}, route = 0, lost = 0, filled = [];

async function show() {
  const mine = ++route;
  const where = place();
  const [view, tab] = BELOW[where.name] ?? [VIEWS[where.name]?.[1], where.name];
  page?.close?.();
  page = null;
  mark(tab);
  remember();
  if (!view) {
    main.replaceChildren(state("There is no such view.", "Choose one above."));
    return;
  }
  document.title = `${view.title} · ${document.getElementById("name").textContent}`;
  main.replaceChildren(state("Loading …"));
  try {
    const opened = await view.open(where);
    if (mine !== route) return opened.close?.();
    page = opened;
    main.replaceChildren(page.element);
  } catch (error) {
    if (mine === route) main.replaceChildren(failure(error));
  }
}

/** The views of recipes. Their scripts are loaded when they are opened. */
async function added() {
  for (const { name, title, order } of await get("/api/views")) {
    const load = () => import(`./extra/${name}/${name}.js`);
    VIEWS[name] = [order, { title, added: true, open: async (where) => (await load()).open(where) }];
  }
}

/** Links stay the same elements, so that the one that was pressed keeps the focus. */
function mark(current) {
  const nav = document.getElementById("nav");
  if (!nav.children.length) {
    const tabs = Object.entries(VIEWS).sort(([, [a]], [, [b]]) => a - b);
    nav.append(...tabs.map(([name, [, view]]) => h("a", { href: link_to(name), "data-view": name }, view.title)));
  }
  hide();
  for (const link of nav.children) {
    if (link.dataset.view !== current) {
      link.removeAttribute("aria-current");
      continue;
    }
    link.setAttribute("aria-current", "page");
    nav.scrollLeft = link.offsetLeft - nav.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
  }
}

/** Hide the tabs of recipes that this run has no data of. */
function hide() {
  for (const link of document.getElementById("nav").children) link.hidden = VIEWS[link.dataset.view][1].added === true && !filled.includes(link.dataset.view);
}

async function look() {
  let wait = EVERY_MS;
  try {
    const now = await get("/api/state");
    if (lost) banner.hidden = true;
    lost = 0;
    head(now);
    const changed = new Set(Object.keys(now.versions).filter((name) => now.versions[name] !== versions[name]));
    versions = now.versions;
    if (!document.hidden) await page?.update?.(changed, now).catch((error) => error.name === "AbortError" || tell(error));
    if (!now.running) wait = IDLE_MS;
    if (Date.now() - asked >= IDLE_MS) await others();
  } catch (error) {
    lost += 1;
    tell(error);
  }
  setTimeout(look, page?.everyMs ?? wait);
}

function tell(error) {
  banner.textContent = `What is shown may be old: ${error.message}`;
  banner.hidden = false;
}

function head(now) {
  document.getElementById("name").textContent = runs[here]?.name ?? now.name;
  filled = now.views;
  hide();
  const { phase, step, total_steps: total, time } = now.status;
  const code = now.launch.exit_code;
  const progress = step == null || (total == null && !step) ? "" : `training step ${step}${total == null ? "" : ` of ${total}`}`;
  const ended = now.launch.ended_at && (code === 0 ? "finished" : `ended with exit code ${code}`);
  const parts = now.running
    ? [phase ?? "starting", progress, time && `since ${duration(Date.now() / 1000 - time)}`]
    : [ended || (now.running === null ? "started on another machine" : "not running"), progress, !ended && phase && `last: ${phase}`];
  document.getElementById("status").replaceChildren(
    ...(now.running ? [h("span", { class: "live", "aria-hidden": "true" })] : []),
    parts.filter(Boolean).join(" · "));
}

/** Take note of runs that began since. A view that has all of them is opened anew, unless somebody is at it. */
async function others() {
  asked = Date.now();
  if (!(await more())) return;
  switcher();
  if (place().name === "compare" && !main.contains(document.activeElement)) await show();
}

/** Which run is shown, where there are several. */
function switcher() {
  document.querySelector(".run label")?.remove();
  if (runs.length < 2) return;
  const label = select("run", "run", runs.map((one) => [one.name, one.name]), runs[here].name);
  label.addEventListener("change", (event) => location.assign(of_run(event.target.value, place().name === "compare" ? location.hash : `#/${place().name in VIEWS ? place().name : "curves"}`)));
  document.querySelector(".run").append(label);
}

window.addEventListener("hashchange", show);
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, svg")) return;
  page?.key?.(event);
});
await Promise.all([connect(), added()]).catch(tell);
switcher();
versions = (await get("/api/state").then((now) => (head(now), now.versions)).catch((error) => (tell(error), {})));
await show();
setTimeout(look, EVERY_MS);
