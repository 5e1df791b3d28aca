// What a reader chose, in the address: `?run=NAME` of the page says whose run, `#/view?key=value` what is seen of it.

const chosen = new Map(); // by view, so that a link to a view leads back to what was chosen there

/** The view that the address names, what follows its name, and what was chosen in it. */
export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  return { name: name || "curves", rest, query: new URLSearchParams(query) };
}

/** Put choices into the address without opening the view anew; "" or null takes one away, a list gives it several times. */
export function keep(changes) {
  const { query } = place();
  for (const [key, value] of Object.entries(changes)) {
    query.delete(key);
    for (const item of [value].flat()) if (item !== "" && item !== null && item !== undefined && item !== false) query.append(key, item);
  }
  const path = location.hash.split("?")[0] || "#/curves";
  history.replaceState(null, "", `${location.pathname}${location.search}${path}${query.size ? `?${query}` : ""}`);
  remember();
}

/** Add a value to those of a key, or take it away. */
export function toggle(key, value, on) {
  const values = place().query.getAll(key).filter((other) => other !== value);
  keep({ [key]: on ? [...values, value] : values });
}

export function remember() {
  const { name, query } = place();
  chosen.set(name, query.toString());
  const link = document.querySelector(`#nav a[data-view="${CSS.escape(name)}"]`);
  if (link) link.href = link_to(name);
}

export const link_to = (name) => `#/${name}${chosen.get(name) ? `?${chosen.get(name)}` : ""}`;

/** The address of a view of another run. */
export function of_run(name, hash) {
  return `?${new URLSearchParams({ run: name })}${hash}`;
}
