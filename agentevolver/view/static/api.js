// Talking to the server. Every failure is an Error with one line for a person.

/** The runs that the page shows: {name, running, step, total_steps, environments}; `here` is the number of the one that is shown. */
export let runs = [];
export let here = 0;
let token = sessionStorage.getItem("token");

// The address in the console ends with #token=. A tab keeps the token; a cookie would reach servers on other ports.
function take() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  sessionStorage.setItem("token", (token = given));
  history.replaceState(null, "", location.pathname + location.search);
}
take();
addEventListener("hashchange", take);

async function answer(response) {
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const error = new Error(body?.detail ?? `the server answered ${response.status}`);
  error.status = response.status;
  throw error;
}

function reached(request) {
  return request.catch((error) => {
    if (error.name === "AbortError") throw error;
    const lost = new Error("the server does not answer; is it still running?");
    lost.lost = true;
    throw lost;
  });
}

/** Ask which runs there are, and which one the address means. */
export async function connect() {
  runs = await get("/api/runs");
  here = Math.max(0, runs.findIndex((run) => run.name === new URLSearchParams(location.search).get("run")));
}

/** Ask whether runs began since; returns whether there are others than before. Those that were there keep their numbers, unless the server is another. */
export async function more() {
  const found = await get("/api/runs"), before = runs, name = runs[here]?.name;
  const same = found.length === before.length && found.every((run, i) => run.name === before[i].name);
  runs = found;
  if (!same && found[here]?.name !== name) here = Math.max(0, found.findIndex((run) => run.name === name));
  return !same;
}

const whose = (path, run) => (runs.length > 1 && !/^\/api\/(runs|views)(\/|$)/.test(path) ? `/runs/${run ?? here}${path}` : path);

/** GET; parameters that are empty are left out. A list gives the parameter several times. `run`: of which, by its number. */
export async function get(path, parameters = {}, { signal, run } = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== "" && item !== null && item !== undefined) query.append(key, item);
    }
  }
  const text = query.toString(), whole = whose(path, run);
  return answer(await reached(fetch(text ? `${whole}?${text}` : whole, { signal, headers: { accept: "application/json" } })));
}

/** PATCH or DELETE, with the token. */
export async function send(method, path, body) {
  token ??= (await answer(await reached(fetch("/api/session")))).token;
  const headers = { authorization: `Bearer ${token}`, ...(body ? { "content-type": "application/json" } : {}) };
  try {
    return await answer(await reached(fetch(whose(path), { method, headers, body: body && JSON.stringify(body) })));
  } catch (error) {
    if (error.status === 401) sessionStorage.removeItem("token"), (token = null); // the server was started anew
    throw error;
  }
}

/** Metrics by name, kept and added to: the server is asked for what came since. */
export class MetricsFeed {
  constructor(names, run) {
    this.names = names;
    this.run = run;
    this.generation = 0;
    this.steps = [];
    this.times = [];
    this.series = {};
  }

  async update(signal) {
    const found = await get("/api/metrics", { name: this.names, generation: this.generation, since: this.steps.length }, { signal, run: this.run });
    if (found.since === 0) Object.assign(this, { steps: [], times: [], series: {} });
    const before = this.steps.length;
    if (found.since !== before) return this; // another answer came first
    this.generation = found.generation;
    this.steps.push(...found.steps);
    this.times.push(...found.times);
    for (const [name, values] of Object.entries(found.series)) {
      this.series[name] ??= new Array(before).fill(null);
      this.series[name].push(...values);
    }
    return this;
  }

  names_like(pattern) {
    return Object.keys(this.series).filter((name) => pattern.test(name)).sort();
  }

  /** Points [step, value] of a metric, without gaps. */
  points(name) {
    const values = this.series[name] ?? [];
    return this.steps.flatMap((step, i) => (values[i] === null || values[i] === undefined ? [] : [[step, values[i]]]));
  }

  last(name) {
    return this.points(name).at(-1)?.[1] ?? null;
  }
}
