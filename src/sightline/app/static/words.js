// The answer of a vision-language model: its words as buttons, and a map for each of them.

import { follow, startJob, values } from "./api.js";
import { drawOverlay, smoothed } from "./shared/draw.js";
import { find, make, number } from "./shared/page.js";

// Show the words of an answer; `choose` is told the number of the one that is to be explained.
export function showWords(words, chosen, choose) {
  for (const name of ["word-field", "words", "every-word"]) find(name).hidden = !words.length;
  find("word-maps").replaceChildren();
  find("words").replaceChildren(...words.map((word, index) => {
    const button = make("button", { type: "button", "aria-pressed": String(chosen === index) }, word);
    button.addEventListener("click", () => choose(String(index)));
    return make("li", {}, button);
  }));
}

// Make one map for every word by one recipe, one after the other; `current` tells whether that is still wanted.
export async function showWordMaps(asked, image, current, choose) {
  find("word-maps").replaceChildren();
  for (const [target, word] of image.words.entries()) {
    const { id } = await startJob({ ...asked, target });
    let map = null, error = "";
    const end = await follow(id, (kind, data) => {
      if (kind === "map") map = data;
      if (kind === "failure") error = data.error;
    });
    if (!current()) return;
    if (!map) throw new Error(error || end.error || `the map of ${word} was ${end.state}`);
    const canvas = make("canvas", { "aria-hidden": "true" });
    drawOverlay(canvas, image.seen, smoothed(await values(id, map.index), image.size, map.smoothing), image.size);
    const button = make("button", { type: "button", className: "map" }, canvas, make("strong", {}, word), make("span", { className: "small soft" }, map.scored ? `ins − del ${number(map.score)}` : ""));
    button.addEventListener("click", () => choose(String(target)));
    find("word-maps").append(make("li", {}, button));
  }
}
