import { MetricsFeed, get } from "../../api.js";
import { chart } from "../../chart.js";
import { h, state, table, number } from "../../dom.js";

export async function open() {
  const feed = new MetricsFeed(["self_play/*"]), element = h("div");
  const look = async () => {
    const [ratings] = await Promise.all([get("/api/self_play"), feed.update()]);
    if (!element.querySelector("svg:hover")) element.replaceChildren(...content(feed, ratings));
  };
  await look();
  return { element, update: async (changed) => (changed.has("self_play") || changed.has("metrics")) && (await look()) };
}

function content(feed, ratings) {
  const heading = h("h2", {}, "Self-play");
  if (!ratings.members) return [heading, state("This run has no ratings.", "self_play.enable plays games against the run's own checkpoints.")];
  const line = (name, text) => ({ name: text, points: feed.points(name) });
  return [heading, h("div", { class: "charts" },
    chart([line("self_play/elo/policy", "policy"), line("self_play/elo/opponent", "its opponent")], { title: "Self-play ratings", note: "Elo" }),
    chart([line("self_play/score", "mean score, a draw is half a win")], { title: "Score against the opponent", low: 0, high: 1 })), opponents(ratings)];
}

/** The frozen policies that self-play draws from, the strongest first, and where the policy stands among them. */
function opponents(ratings) {
  const policy = { name: "the policy", elo: ratings.elo, games: null };
  const rows = [policy, ...ratings.members].sort((a, b) => b.elo - a.elo);
  return h("section", {}, h("h2", {}, `Opponents after training step ${number(ratings.step)}`), table("opponents", [
    { name: "policy", cell: (row) => (row === policy ? h("b", {}, row.name) : row.name) },
    { name: "rating (Elo)", class: "num", cell: (row) => number(Math.round(row.elo)), value: (row) => row.elo },
    { name: "games", class: "num", cell: (row) => number(row.games) },
  ], rows));
}
