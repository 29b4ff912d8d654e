// Two maps of the picture side by side with one cursor: two classes, two methods or two models; and two classes contrasted.

import { ask, follow, pixels, startJob, values } from "./api.js";
import { drawCursor, drawOverlay, smoothed } from "./shared/draw.js";
import { find, make, percent, readAt, say, trying, watchCursor } from "./shared/page.js";

const sides = { left: {}, right: {} };
let now = () => ({});
let describe = async () => ({});
let contrast = null;

// `current` gives the picture, model and classes of the page; `describeModel` what a model can be asked.
export function watchCompare(models, current, describeModel) {
  now = current;
  describe = describeModel;
  for (const side of ["left", "right"]) build(side, models);
  find("compare-go").addEventListener("click", () => trying(compare));
  find("against-go").addEventListener("click", () => trying(() => showContrast("against")));
  find("var-go").addEventListener("click", () => trying(() => showContrast("var")));
}

export async function refreshCompare() {
  const view = now();
  for (const side of ["left", "right"]) {
    sides[side].model.value = view.model;
    await setChoices(side);
    clear(side);
  }
  const methods = sides.right.method.options;
  if (view.best) sides.left.method.value = sides.right.method.value = view.best;
  if (view.choices.length > 1) sides.right.target.value = view.choices[1].value;
  else if (methods.length > 1) sides.right.method.selectedIndex = 1;
  find("contrast").hidden = true;
}

function build(side, models) {
  const box = find(side), parts = sides[side];
  const field = (name, label, element) => {
    element.id = `${side}-${name}`;
    parts[name] = element;
    return make("p", { className: "field" }, make("label", { for: element.id }, label), element);
  };
  parts.canvas = make("canvas", { className: "large", tabIndex: 0, "aria-label": `${side} map over the picture; arrow keys move both cursors` });
  parts.canvas.setAttribute("role", "img");
  box.append(
    field("model", "Model", make("select", {}, ...models.map((name) => make("option", { value: name }, name)))),
    field("method", "Method", make("select")), field("target", "Class", make("select")),
    field("words", "Text", make("input", { maxLength: 200, placeholder: "a photo of a dog" })), parts.canvas);
  parts.model.addEventListener("input", () => trying(() => setChoices(side)));
  watchCursor(parts.canvas, point);
}

async function setChoices(side) {
  const parts = sides[side], model = await describe(parts.model.value), view = now();
  const before = parts.method.value;
  parts.method.replaceChildren(...model.recipes.map(({ recipe }) => make("option", { value: recipe }, recipe)));
  if (model.recipes.some(({ recipe }) => recipe === before)) parts.method.value = before;
  const own = parts.model.value === view.model ? view.choices : [];
  parts.target.replaceChildren(make("option", { value: "" }, model.prompt !== null ? "the longest word" : own.length && !view.classes.length ? "the largest or surest" : "predicted class"), ...own.map(({ value, label }) => make("option", { value }, label)));
  if (own.length) parts.target.value = own[0].value;
  parts.target.parentElement.hidden = model.takes_text;
  parts.words.parentElement.hidden = !model.takes_text;
  if (model.takes_text && !parts.words.value) parts.words.value = view.text;
}

function clear(side) {
  const parts = sides[side];
  parts.shown = null;
  parts.canvas.width = parts.canvas.height = 1;
  find("against-go").disabled = find("var-go").disabled = true;
  find("compare-readout").textContent = "";
}

async function run(question) {
  if (question.text === "") throw new Error("type a text for this model to look for");
  const { id } = await startJob(question);
  const made = { job: id };
  const end = await follow(id, (kind, data) => {
    if (kind === "image") made.image = data;
    if (kind === "map") made.map = data;
    if (kind === "failure") made.error = data.error;
  });
  if (!made.map) throw new Error(made.error || end.error || `the comparison was ${end.state}`);
  made.values = await values(id, made.map.index);
  made.smooth = smoothed(made.values, made.image.size, made.map.smoothing);
  made.seen = await pixels(`/api/jobs/${id}/pictures/seen`, made.image.size);
  return made;
}

const question = (side) => {
  const { model, method, target, words } = sides[side];
  const { picture, model: open, prompt } = now();
  const asked = { model: model.value, picture, recipes: [method.value], prompt: model.value === open ? prompt : "" };
  if (target.parentElement.hidden) return { ...asked, text: words.value.trim() };
  const [kind, index] = target.value.split(":");
  return target.value === "" ? asked : { ...asked, [kind]: Number(index) };
};

async function compare() {
  say("");
  find("contrast").hidden = true;
  find("compare-readout").textContent = "working…";
  for (const side of ["left", "right"]) {
    const asked = question(side);
    sides[side].shown = { ...(await run(asked)), asked };
    drawOverlay(sides[side].canvas, sides[side].shown.seen, sides[side].shown.smooth, sides[side].shown.image.size);
  }
  const [left, right] = [sides.left.shown, sides.right.shown];
  const contrastable = left.asked.model === right.asked.model && left.asked.recipes[0] === right.asked.recipes[0]
    && left.image.target !== null && right.image.target !== null && left.image.target !== right.image.target;
  find("against-go").disabled = find("var-go").disabled = !contrastable;
  const told = [left, right].map(({ map, image }) => `${map.recipe} for ${image.label}${map.scored ? `: insertion − deletion ${map.ins_del.toFixed(2)}` : ""}`);
  find("compare-readout").textContent = told.join("; ");
}

// One cursor for both maps: the same place in the picture, whatever the size of each model's input.
function point(place) {
  if (!sides.left.shown || !sides.right.shown || !place) return;
  const source = document.activeElement === sides.right.canvas || sides.right.canvas.matches(":hover") ? sides.right : sides.left;
  const told = ["left", "right"].map((side) => {
    const { canvas, shown } = sides[side];
    const there = [Math.floor((place[0] * canvas.width) / source.canvas.width), Math.floor((place[1] * canvas.height) / source.canvas.height)];
    drawOverlay(canvas, shown.seen, shown.smooth, shown.image.size);
    drawCursor(canvas, there);
    return `${side}: ${readAt(shown.values, shown.image.size, shown.map.grid, there)}`;
  });
  find("compare-readout").textContent = told.join(" — ");
}

async function showContrast(kind) {
  say("");
  const left = sides.left.shown, right = sides.right.shown;
  const asked = { ...left.asked, target: left.image.target, contrast: { kind, other: right.image.target } };
  contrast = { ...(await run(asked)), labels: [left.image.label, right.image.label] };
  find("contrast").hidden = false;
  find("contrast-title").textContent = kind === "against" ? `${left.image.label} minus ${right.image.label}` : `${left.image.label} where it competes with ${right.image.label}`;
  drawOverlay(find("contrast-map"), contrast.seen, contrast.smooth, contrast.image.size);
  find("shares").hidden = true;
  if (contrast.map.classes.length) {
    contrast.shares = await Promise.all(contrast.map.classes.map((_, place) => values(contrast.job, contrast.map.index, `share=${place}`)));
    showShares(null);
    find("shares").hidden = false;
  }
}

// The share of each class, at a pixel or on average over the picture.
function showShares(place) {
  const shares = contrast.shares.map((share) => (place ? share[place[1] * contrast.image.size[1] + place[0]] : share.reduce((sum, value) => sum + value, 0) / share.length));
  const told = shares.map((share, index) => `${contrast.labels[index]} ${percent(share)}`);
  find("shares").setAttribute("aria-label", `Shares ${place ? "at the cursor" : "on average"}: ${told.join(", ")}`);
  find("shares").replaceChildren(...shares.map((share, index) => {
    const part = make("span", { className: `share-${index}` }, told[index]);
    part.style.width = `${100 * share}%`;
    return part;
  }));
}

watchCursor(find("contrast-map"), (place) => { if (contrast && contrast.shares) showShares(place); });
