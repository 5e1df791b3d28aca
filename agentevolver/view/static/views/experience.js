import { MetricsFeed, get, send } from "../api.js";
import { chart } from "../chart.js";
import { h, select, state, failure, number, signed, percent, clock } from "../dom.js";
import { keep } from "../place.js";

export const title = "Experience";
const SORTS = [["newest", "last change"], ["uses", "uses"], ["utility", "success when used"], ["lift", "lift over unguided"], ["paired", "paired utility"], ["support", "times distilled"]];
const KINDS = [["", "any"], ["success", "from successes"], ["failure", "from failures"], ["comparative", "from comparisons"], ["manual", "written by hand"], ["pinned", "pinned"]];

export async function open({ query }) {
  const given = (key, usual = "") => query.get(key) ?? usual;
  const wanted = { workspace: given("workspace"), text: given("text"), by_meaning: query.has("by_meaning"), category: given("category"), sort: given("sort", "newest") };
  const feed = new MetricsFeed(["exp_manager/*"]);
  const element = h("div", {}, h("h2", {}, "Experience pool")), list = h("div", { class: "cards" }), curves = h("div");
  let found = null, offset = 0;

  const load = async (more) => {
    offset = more ? offset + 50 : 0;
    found = await get("/api/experience", { ...wanted, by_meaning: wanted.by_meaning && wanted.text ? "true" : "", offset });
  };
  const draw = (more) => {
    if (!found.exists) {
      list.replaceChildren(state("This run has no experience pool (yet).", "exp_manager makes and uses one; `python -m experience_manager` fills one by hand."));
      return;
    }
    list.querySelector(".bar-buttons")?.remove();
    if (!more) list.replaceChildren();
    const left = found.total - offset - found.rows.length;
    list.append(...found.rows.map((row) => card(row, found.workspace)), h("div", { class: "bar-buttons" },
      h("span", { class: "soft small" }, `${number(offset + found.rows.length)} of ${number(found.total)}`),
      left > 0 && h("button", { onclick: () => again(true) }, "Show more")));
    if (!found.total) list.replaceChildren(state(wanted.text || wanted.category ? "No experience fits." : "The pool is empty."));
  };
  const again = async (more) => {
    if (!more && wanted.by_meaning && wanted.text) list.replaceChildren(state("Searching …", "The first search by meaning loads the encoder."));
    try {
      await load(more);
      draw(more);
    } catch (error) {
      list.replaceChildren(failure(error));
    }
  };
  const change = (event) => {
    event?.preventDefault();
    const data = new FormData(form);
    for (const key of ["workspace", "text", "category", "sort"]) if (data.has(key)) wanted[key] = data.get(key);
    wanted.by_meaning = data.has("by_meaning");
    keep({ ...wanted, sort: wanted.sort === "newest" ? "" : wanted.sort, by_meaning: wanted.by_meaning && "1" });
    again(false);
  };
  await Promise.all([load(false), feed.update()]);
  const spaces = Object.entries(found.workspaces ?? {});
  const form = h("form", { class: "filters", role: "search", onsubmit: change, onchange: change, hidden: !found.exists },
    h("label", {}, h("span", {}, "contains"), h("input", { type: "search", name: "text", value: wanted.text })),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "by_meaning", checked: wanted.by_meaning }), "by meaning"),
    select("category", "kind", KINDS, wanted.category),
    select("sort", "most first", SORTS, wanted.sort),
    spaces.length > 1 && select("workspace", "workspace", spaces.map(([name, count]) => [name, `${name} (${count})`]), found.workspace),
    h("button", {}, "Search"));
  element.append(curves, form, list);
  draw(false);
  const picture = () => curves.replaceChildren(...charts(feed));
  picture();
  return {
    element,
    async update(changed) {
      if (changed.has("metrics")) await feed.update().then(picture);
      const busy = list.querySelector("form, details[open]") || list.contains(document.activeElement) || offset > 0 || wanted.by_meaning;
      if (busy || !(changed.has("pool") || changed.has("experience"))) return;
      await load(false);
      form.hidden = !found.exists;
      draw(false);
    },
  };
}

function charts(feed) {
  const sets = [["Experiences in the pool", ["exp_manager/pool_size"]], ["Guided rollouts of a training step", ["exp_manager/guided_rollouts"]]];
  const shown = sets.filter(([, names]) => names.some((name) => feed.points(name).length));
  return shown.length ? [h("div", { class: "charts" }, shown.map(([text, names]) =>
    chart(names.map((name) => ({ name: name.split("/").at(-1).replace("_", " "), points: feed.points(name) })), { title: text, low: 0 }))), h("h2", {}, "Experiences")] : [];
}

function card(row, workspace) {
  const path = `/api/experience/${encodeURIComponent(workspace)}/${encodeURIComponent(row.id)}`;
  const element = h("article", { class: "card" });
  const refresh = (now, note) => element.replaceWith(Object.assign(card(now, workspace), {}), ...(note ? [h("p", { class: "small warn" }, `Saved. This text looks like a ${note}; it is shown to the policy as it is.`)] : []));
  const problem = h("p", { class: "small bad", role: "alert", hidden: true });
  const attempt = async (button, work) => {
    button.disabled = true;
    problem.hidden = true;
    try {
      await work();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      button.disabled = false;
    }
  };
  const pin = h("button", { onclick: () => attempt(pin, async () => refresh((await send("PATCH", path, { pinned: !row.pinned })).row)) }, row.pinned ? "Unpin" : "Pin");
  const remove = h("button", { class: "danger", onclick: () => {
    if (remove.dataset.sure) return attempt(remove, async () => (await send("DELETE", path), element.remove()));
    remove.dataset.sure = "1";
    remove.textContent = "Really delete?";
    setTimeout(() => (delete remove.dataset.sure, (remove.textContent = "Delete")), 4000);
  } }, "Delete");
  const edit = h("button", { onclick: () => {
    const field = (name, label, rows) => h("label", {}, h("span", {}, label), h("textarea", { name, rows, value: row[name] }));
    const save = h("button", {}, "Save");
    const form = h("form", { onsubmit: (event) => {
      event.preventDefault();
      const data = Object.fromEntries(new FormData(form));
      const changes = Object.fromEntries(Object.entries(data).filter(([name, value]) => value !== row[name]));
      if (!Object.keys(changes).length) return element.replaceWith(card(row, workspace));
      save.textContent = "Saving …";
      attempt(save, async () => {
        const answer = await send("PATCH", path, changes);
        refresh(answer.row, answer.note);
      }).then(() => (save.textContent = "Save"));
    } }, field("when_to_use", "when to use", 2), field("content", "content", 4), field("scope", "place where it holds (empty: everywhere)", 1), problem,
    h("div", { class: "bar-buttons" }, save, h("button", { type: "button", onclick: () => element.replaceWith(card(row, workspace)) }, "Cancel"),
      h("span", { class: "small soft" }, "A text that you change is embedded anew and is yours from then on.")));
    element.replaceChildren(form);
    form.elements.when_to_use.focus();
  } }, "Edit");
  element.append(h("div", {},
    h("p", { class: "when wrap" }, row.when_to_use),
    row.content !== row.when_to_use && h("p", { class: "wrap" }, row.content),
    row.variants.length > 0 && h("details", {}, h("summary", {}, `${row.variants.length} other wording${row.variants.length > 1 ? "s" : ""}`),
      h("ul", {}, row.variants.map((v) => h("li", { class: "wrap small" }, `${v.when_to_use} → ${v.content} (${v.support})`)))),
    problem,
    h("div", { class: "meta" },
      row.pinned && h("span", { class: "tag info" }, "pinned"),
      h("span", { class: "tag" }, row.by_person ? "yours" : row.category),
      row.similarity !== null && h("span", {}, `cosine ${number(row.similarity)}`),
      row.scope && h("span", {}, `at ${row.scope}`),
      h("span", {}, row.uses ? `used ${number(row.uses)} ${row.uses === 1 ? "time" : "times"}, ${percent(row.utility)} successful` : "not used yet"),
      row.lift !== null && h("span", { class: row.lift > 0 ? "good" : row.lift < 0 ? "bad" : "" }, `lift ${signed(row.lift, 2)}`),
      row.paired > 0 && h("span", {
        class: row.paired_utility > 0 ? "good" : row.paired_utility < 0 ? "bad" : "",
        title: "guided less unguided half of its groups, shrunk towards 0",
      }, `utility ${signed(row.paired_utility, 2)} of ${number(row.paired)} ${row.paired === 1 ? "group" : "groups"}`),
      h("span", {}, `distilled ${number(row.support)} ${row.support === 1 ? "time" : "times"}`),
      row.step !== null && h("span", {}, `since training step ${row.step}`),
      h("span", { title: row.id }, clock(row.modified)),
      h("span", { class: "spacer" }), pin, edit, remove)));
  return element;
}
