// The ranked panel inside a notebook: one picture, its maps in order, one of them large with its sliders. It draws what
// the ranking holds and asks nobody for more.

import { drawCurves } from "./chart.js";
import { drawCursor, drawLegend, drawOutline, drawOverlay, drawScrubbed, orderOf, setColours, smoothed } from "./draw.js";
import { showFills } from "./fills.js";
import { make, number, percent, readAt, watchCursor } from "./page.js";

const bytesOf = (view) => view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);

// Pictures come as red, green and blue alone.
function opaque(view) {
  const colours = new Uint8Array(bytesOf(view)), out = new Uint8ClampedArray((colours.length / 3) * 4).fill(255);
  for (let pixel = 0; pixel < colours.length / 3; pixel += 1) out.set(colours.subarray(3 * pixel, 3 * pixel + 3), 4 * pixel);
  return out;
}

function field(label, input) {
  const name = make("label", {}, label);
  name.append(input);
  return make("p", { className: "field" }, name);
}

function choice(options) {
  return make("select", {}, ...options.map(([value, text]) => make("option", { value }, text)));
}

function slider(properties) {
  return make("input", { type: "range", ...properties });
}

function card(map, image, region, choose) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const note = map.control ? "control" : map.class_agnostic ? "same for every class" : "";
  const tags = [note, map.smoothing ? "shown smoothed" : "", ...map.flags].filter(Boolean);
  drawOverlay(canvas, image.seen, map.smooth, image.size);
  if (region) drawOutline(canvas, region);
  const told = map.interval ? `mean, ${number(map.interval[0])} to ${number(map.interval[1])}` : "ins − del";
  const button = make("button", { type: "button", className: "map", "aria-pressed": "false" }, canvas, make("code", {}, map.recipe),
    make("span", { className: "row" }, make("span", { className: "score" }, number(map.score)), make("span", { className: "small soft" }, told)),
    ...tags.map((text) => make("span", { className: "tag" }, text)));
  button.addEventListener("click", () => choose(map));
  return make("li", {}, button);
}

function readMaps(facts, view) {
  const values = new Float32Array(bytesOf(view)), count = facts.size[0] * facts.size[1];
  return facts.maps.map((map, index) => {
    const own = values.subarray(index * count, (index + 1) * count);
    return { ...map, values: own, smooth: smoothed(own, facts.size, map.smoothing), order: orderOf(own) };
  });
}

function render({ model, el }) {
  const root = el.attachShadow ? (el.shadowRoot || el.attachShadow({ mode: "open" })) : el;
  const facts = model.get("facts");
  setColours(facts.colours);
  const image = { ...facts, seen: opaque(model.get("seen")), insertion: opaque(model.get("insertion")), deletion: opaque(model.get("deletion")) };
  const maps = readMaps(facts, model.get("maps"));
  const mask = facts.region ? new Uint8Array(bytesOf(model.get("region"))) : null;
  const [height, width] = facts.size;
  const region = mask && ((x, y) => x >= 0 && y >= 0 && x < width && y < height && mask[y * width + x] === 1);
  const verdict = make("div", { className: `verdict${facts.best ? "" : " doubt"}` }, make("strong", {}, facts.headline), facts.reason);
  const title = make("h3", {}), large = make("canvas", { className: "large", tabIndex: 0, "aria-label": "The map over the picture; arrow keys move the cursor" });
  large.setAttribute("role", "img");
  const readout = make("output", { className: "soft small" }, "Point at the map, or use the arrow keys on it, to read values.");
  const legend = make("canvas", { width: 255, height: 1, "aria-hidden": "true" }), low = make("span"), high = make("span");
  const opacity = slider({ min: 0, max: 1, step: 0.05, value: 0.8 });
  const sign = choice([["both", "for and against"], ["positive", "for only"], ["negative", "against only"]]);
  const scale = choice([["0.995", "up to the 99.5th percentile"], ["0.95", "up to the 95th percentile"], ["1", "up to the maximum"]]);
  const smooth = make("input", { type: "checkbox", checked: true });
  const test = choice([["", "none: show the map"], ["deletion", "deletion: remove the most important pixels"], ["insertion", "insertion: restore the most important pixels"]]);
  const scrub = slider({ min: 0, max: 1, step: 1, value: 0 });
  const answer = make("output", { className: "soft small" }), curves = make("div", { className: "chart" }), fills = make("div", { className: "scroll" });
  const smoothing = field("Smoothed ", smooth);
  let open = maps[0], cursor = null;

  function draw() {
    if (!open) return;
    const kind = test.value, step = Number(scrub.value), curve = open.curves[kind];
    if (curve) {
      const [start, end] = kind === "deletion" ? [image.seen, image.deletion] : [image.insertion, image.seen];
      drawScrubbed(large, start, end, open.order, Math.min(step * facts.metric_step, open.order.length), facts.size);
      answer.textContent = `${percent(step / (curve.length - 1))} of the pixels ${kind === "deletion" ? "removed" : "restored"}: the model's answer for ${facts.label} is ${number(curve[step])}`;
    } else {
      const limit = drawOverlay(large, image.seen, smooth.checked ? open.smooth : open.values, facts.size, { opacity: Number(opacity.value), sign: sign.value, scale: Number(scale.value) });
      if (region) drawOutline(large, region);
      drawLegend(legend);
      low.textContent = `against ${number(-limit)}`;
      high.textContent = `for ${number(limit)}`;
      answer.textContent = "Move the slider: the model's answer follows.";
    }
    drawCurves(curves, open.curves, curve ? { kind, step } : null);
    if (cursor) {
      drawCursor(large, cursor);
      readout.textContent = readAt(open.values, facts.size, facts.size, cursor);
    }
  }

  const choose = (map) => {
    open = map;
    title.textContent = `${map.recipe} for ${facts.label}`;
    smoothing.hidden = !map.smoothing;
    scrub.max = Math.max(0, ...Object.values(map.curves).map((curve) => curve.length - 1));
    [...panel.querySelectorAll("button")].forEach((button, index) => button.setAttribute("aria-pressed", String(maps[index] === map)));
    draw();
  };
  const panel = make("ol", { className: "maps" }, ...maps.map((map) => card(map, image, region, choose)));
  panel.setAttribute("aria-label", "Maps, the most faithful first");
  for (const input of [opacity, sign, scale, smooth, test]) input.addEventListener("input", draw);
  scrub.addEventListener("input", () => { if (!test.value) test.value = "deletion"; draw(); });
  watchCursor(large, (place) => { cursor = place; draw(); });
  showFills(fills, facts);
  const show = make("fieldset", {}, make("legend", {}, "Show"), field("Opacity ", opacity), field("Sign ", sign), field("Colour scale ", scale), smoothing);
  const scrubbing = make("fieldset", {}, make("legend", {}, "Scrub"), field("Test ", test), field("Pixels changed ", scrub), answer, curves);
  const scaled = make("div", { className: "legend small soft" }, low, legend, high);
  root.replaceChildren(make("style", {}, model.get("style")), make("div", { className: "explore sheet" }, make("h2", {}, facts.name), verdict, panel, title,
    make("div", { className: "detail" }, make("div", {}, large, scaled, readout), make("div", { className: "controls" }, show, scrubbing)), fills));
  if (open) choose(open);
}

export default { render };
