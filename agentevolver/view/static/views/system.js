import { MetricsFeed, get, here, runs } from "../api.js";
import { chart } from "../chart.js";
import { h, facts, table, state, number } from "../dom.js";

export const title = "System";

export async function open() {
  const feed = new MetricsFeed(["perf/*", "actor/perf/*", "timing_s/step", "timing_s/rollout/*"]);
  const element = h("div");
  const samples = [];
  const look = async () => {
    const [now, ray] = await Promise.all([get("/api/system", { since: samples.at(-1)?.time ?? 0 }), get("/api/ray"), feed.update()]);
    samples.push(...now.samples);
    samples.splice(0, Math.max(0, samples.length - 900));
    if (!element.querySelector("svg:hover")) element.replaceChildren(...content(now, samples, feed), ...cluster(ray));
  };
  await look();
  return { element, everyMs: 2000, update: look };
}

/** Ray's actors, what waits and its object store, while a run with a dashboard goes on. */
function cluster(ray) {
  if (!ray.address) return [];
  const waiting = (one) => Object.entries(one.states).filter(([state]) => state.startsWith("PENDING")).reduce((sum, [, n]) => sum + n, 0);
  const sum = (rows, of) => rows.reduce((total, one) => total + of(one), 0);
  const used = sum(ray.nodes, (n) => n.store_used_gb), whole = sum(ray.nodes, (n) => n.store_gb);
  const states = (one) => Object.entries(one.states).map(([state, n]) => `${number(n)} ${state.toLowerCase().replaceAll("_", " ")}`).join(", ");
  const listed = (name, rows) => rows.length > 0 && table(name, [{ name, class: "text", cell: (one) => one.name }, { name: "states", cell: states }], rows);
  return [
    h("h2", {}, "Ray"),
    ray.problem ? h("p", { class: "warn" }, ray.problem) : facts([
      ["actors alive", number(sum(ray.actors, (one) => one.states.ALIVE ?? 0))],
      ["calls that wait", number(sum(ray.tasks, waiting))],
      ["calls that run", number(sum(ray.tasks, (one) => one.states.RUNNING ?? 0))],
      whole > 0 && ["object store", `${used.toFixed(2)} GB`, `of ${whole.toFixed(2)}`],
    ]),
    h("p", { class: "small" }, ray.may_open
      ? h("a", { class: "inline", href: `${runs.length > 1 ? `/runs/${here}` : ""}/api/ray/open`, target: "_blank", rel: "noopener" }, "Open Ray's dashboard")
      : [h("span", { class: "soft" }, `Ray's dashboard is at ${ray.address}. It opens with the link that the run's terminal shows; after that, from here too.`)]),
    listed("actor", ray.actors), ray.tasks.length > 0 && h("details", { class: "below" }, h("summary", {}, `Calls of ${number(ray.tasks.length)} kinds`), listed("call", ray.tasks)),
  ].filter(Boolean);
}

const time = (t) => new Date(t * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

function content(now, samples, feed) {
  const last = samples.at(-1), metric = (name) => ({ name: name.split("/").at(-1).replaceAll("_", " "), points: feed.points(name) });
  const memory = ["actor/perf/max_memory_allocated_gb", "actor/perf/max_memory_reserved_gb", "actor/perf/cpu_memory_used_gb"].map(metric);
  const rollouts = feed.names_like(/^timing_s\/rollout\//).map(metric);
  const live = { xName: "time", xFormat: time, low: 0 };
  return [
    h("h2", {}, "This machine"),
    facts([
      ["CPU", `${number(last.cpu, 0)} %`, `of ${now.cpus} core${now.cpus > 1 ? "s" : ""}`],
      ["load", now.load.map((x) => x.toFixed(1)).join(" "), "1, 5, 15 min"],
      ["memory", `${last.memory.toFixed(1)} GB`, `of ${now.memory_gb.toFixed(1)}`],
      ["disk free", `${number(now.disk.free_gb, 0)} GB`, `of ${number(now.disk.total_gb, 0)}`],
      ["the run", now.process_count ? `${now.process_memory_gb.toFixed(1)} GB` : "not here", now.process_count ? `${now.process_count} processes, shared memory counted in each` : ""],
    ]),
    h("div", { class: "charts" },
      chart([{ name: "CPU in percent", points: samples.map((s) => [s.time, s.cpu]) }], { title: "CPU", note: "while this page is open", high: 100, ...live }),
      chart([{ name: "memory in GB", points: samples.map((s) => [s.time, s.memory]), colour: "var(--s4)" }], { title: "Memory", note: "while this page is open", high: now.memory_gb, ...live }),
      memory.some((s) => s.points.length) && chart(memory, { title: "Memory of the trainer", note: "GB, by training step", low: 0 }),
      chart([metric("perf/throughput")], { title: "Tokens per second", note: "verl's count, prompts included", low: 0 }),
      rollouts.length > 0 && chart(rollouts, { title: "Time of a rollout", note: "seconds, mean, and the slowest", low: 0 })),
    h("h2", {}, "Processes of the run"),
    now.processes.length ? table("processes of the run", [
      { name: "process", class: "text", cell: (p) => p.name }, { name: "pid", class: "num soft", cell: (p) => p.pid },
      { name: "CPU", class: "num", cell: (p) => `${number(p.cpu, 0)} %` }, { name: "memory", class: "num", cell: (p) => `${p.memory.toFixed(2)} GB` },
    ], now.processes) : state("No process of this run is running on this machine."),
  ];
}
