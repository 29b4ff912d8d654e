// What every map scores under each fill, once that was asked for.

import { make, number, percent } from "./page.js";

export function showFills(place, { fills, judged }) {
  place.hidden = !fills.length;
  if (!fills.length) return;
  const cell = (tag, text) => make(tag, tag === "th" ? { scope: "col" } : {}, text);
  const heads = ["map", ...fills.map((fill) => fill.replaceAll("_", " ")), "mean", "95 % interval", "beats controls"];
  const rows = judged.filter(({ interval }) => interval).map((map) => make("tr", {},
    make("th", { scope: "row" }, make("code", {}, map.recipe), map.control ? " (control)" : ""),
    ...fills.map((fill) => cell("td", number(map.fills[fill]))),
    cell("td", number(map.score)), cell("td", `${number(map.interval[0])} to ${number(map.interval[1])}`),
    cell("td", map.share === null ? "–" : percent(map.share))));
  place.replaceChildren(make("table", {}, make("caption", {}, "Insertion − deletion under each fill"),
    make("thead", {}, make("tr", {}, ...heads.map((head) => cell("th", head)))), make("tbody", {}, ...rows)));
}
