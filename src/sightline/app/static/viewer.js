// One map, large: how it is shown, its layers, its values, and scrubbing through insertion and deletion.

import { ask, values } from "./api.js";
import { drawCurves } from "./shared/chart.js";
import { drawCursor, drawLegend, drawOverlay, drawScrubbed, orderOf, smoothed } from "./shared/draw.js";
import { outlineTarget } from "./objects.js";
import { find, make, number, percent, readAt, say, trying, watchCursor } from "./shared/page.js";

let shown = null; // { entry, image, values, order, cursor }
let changed = () => {};

export function watchViewer(told) {
  changed = told;
  for (const name of ["opacity", "sign", "scale", "smooth"]) find(name).addEventListener("input", draw);
  find("scrub-kind").addEventListener("input", () => { find("scrub").value = 0; draw(); changed(); });
  find("scrub").addEventListener("input", () => { if (!find("scrub-kind").value) find("scrub-kind").value = "deletion"; draw(); changed(); });
  find("layer").addEventListener("input", () => trying(async () => { await showLayer(Number(find("layer").value)); changed(); }));
  watchCursor(find("large"), (place) => { if (shown) { shown.cursor = place; draw(); } });
  find("card-open").addEventListener("click", () => trying(openCard));
  find("card-close").addEventListener("click", () => find("card").close());
}

export const openMap = () => (shown ? shown.entry : null);
// Where the sliders stand, for the link: the test and its step, and a layer other than the method's own.
export const standing = () => ({
  test: find("scrub-kind").value,
  step: find("scrub-kind").value ? find("scrub").value : "",
  layer: shown && Number(find("layer").value) !== shown.entry.data.own ? find("layer").value : "",
});

async function showLayer(layer) {
  const { entry, image } = shown;
  const found = await values(entry.job, entry.data.index, `layer=${layer}`);
  if (!shown || shown.entry !== entry || Number(find("layer").value) !== layer) return;
  Object.assign(shown, { values: found, smooth: smoothed(found, image.size, entry.data.smoothing) });
  draw();
}

export function closeViewer() {
  shown = null;
  find("detail").hidden = true;
}

// Show a map whose values are there; `image` has the pixels the model saw and those that it is filled with.
export function openViewer(entry, image, view = {}) {
  const same = shown && shown.entry === entry;
  if (!same) {
    shown = { entry, image, values: entry.values, smooth: entry.smooth, order: orderOf(entry.values), cursor: null };
    find("detail").hidden = false;
    find("detail-title").textContent = `${entry.data.recipe} for ${image.label}`;
    setLayers(entry.data);
    showFiles(entry);
    find("smooth-field").hidden = !entry.data.smoothing;
    if (view.layer && Number(view.layer) < entry.data.layers.length) { find("layer").value = view.layer; trying(() => showLayer(Number(view.layer))); }
    if (view.test !== undefined) { find("scrub-kind").value = view.test; find("scrub").value = view.step || 0; }
  }
  const curve = entry.data.curves && entry.data.curves.deletion;
  find("scrub-field").disabled = !curve;
  if (curve) find("scrub").max = curve.length - 1;
  draw();
}

function setLayers(data) {
  find("layer-field").hidden = data.layers.length < 2;
  find("layer").max = Math.max(0, data.layers.length - 1);
  find("layer").value = data.own;
}

function draw() {
  if (!shown) return;
  const { entry, image, cursor } = shown;
  const kind = find("scrub-kind").value, step = Number(find("scrub").value);
  const curves = entry.data.curves || {};
  const options = { opacity: Number(find("opacity").value), sign: find("sign").value, scale: Number(find("scale").value) };
  if (kind && curves[kind]) {
    const count = Math.min(step * image.metricStep, shown.order.length);
    const [start, end] = kind === "deletion" ? [image.seen, image.deletion] : [image.insertion, image.seen];
    drawScrubbed(find("large"), start, end, shown.order, count, image.size);
    const share = percent(step / (curves[kind].length - 1));
    find("scrub-answer").textContent = `${share} of the pixels ${kind === "deletion" ? "removed" : "restored"}: the model's answer for ${image.label} is ${number(curves[kind][step])}`;
  } else {
    const limit = drawOverlay(find("large"), image.seen, find("smooth").checked ? shown.smooth : shown.values, image.size, options);
    outlineTarget(find("large"), image);
    drawLegend(find("legend-strip"));
    find("legend-low").textContent = `against ${number(-limit)}`;
    find("legend-high").textContent = `for ${number(limit)}`;
    find("scrub-answer").textContent = curves.deletion ? "Move the slider: the model's answer follows." : "Scrubbing is possible once the map is scored.";
  }
  find("layer-name").textContent = entry.data.layers[Number(find("layer").value)] || "";
  drawCurves(find("curves"), curves, kind ? { kind, step } : null);
  if (cursor) {
    drawCursor(find("large"), cursor);
    find("readout").textContent = readAt(shown.values, image.size, entry.data.grid, cursor);
  }
}

function showFiles(entry) {
  const job = `/api/jobs/${entry.job}`, map = `${job}/maps/${entry.data.index}`;
  const files = { "Picture (PNG)": `${map}/overlay.png`, "Map (safetensors)": `${map}/map.safetensors`, "Numbers (JSON)": `${job}/result.json`, "Whole panel (page)": `${job}/page.html` };
  find("downloads").replaceChildren(...Object.entries(files).map(([name, href]) => make("a", { href, download: "" }, name)));
  trying(async () => {
    const lines = await ask(`${map}/snippets`);
    find("python").textContent = lines.python;
    find("command").textContent = lines.command || "a text is explained from Python";
  });
}

async function openCard() {
  say("");
  const outer = shown.entry.data.recipe.match(/^\w+/)[0];
  const names = [...new Set(shown.entry.data.recipe.match(/[a-z_]\w*(?=\(|,|\)|$)/g) || [outer])];
  const cards = (await Promise.all(names.map((name) => ask(`/api/cards/${name}`).catch(() => null)))).filter(Boolean);
  find("card-body").replaceChildren(...cards.flatMap((card, place) => {
    const facts = { Formula: card.formula.join("\n\n"), Cost: card.cost, Needs: card.needs.join(", "), Cite: Object.values(card.citations).join("\n"), Checked: card.parity };
    const list = make("dl", {}, ...Object.entries(facts).filter(([, text]) => text).flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
    const title = make("h2", {}, card.name);
    if (place === 0) title.id = "card-title";
    return [title, make("p", {}, card.summary), list];
  }));
  find("card").showModal();
}
