// The page: which picture, model and class are asked about, the maps as they come, and which one is open.

import { ask, cancelJob, follow, labels, pixels, startJob, upload, values } from "./api.js";
import { drawOverlay, setColours, smoothed } from "./shared/draw.js";
import { showFills } from "./shared/fills.js";
import { refreshCompare, watchCompare } from "./compare.js";
import { readLink, writeLink } from "./link.js";
import { outlineTarget, showObjects, watchObjects } from "./objects.js";
import { find, make, number, percent, say, trying } from "./shared/page.js";
import { showWordMaps, showWords } from "./words.js";
import { closeViewer, openMap, openViewer, standing, watchViewer } from "./viewer.js";

const NOTHING = { target: "", box: "", text: "" }; // the predicted class
const view = { model: "", picture: "", fills: "", prompt: "", ...NOTHING };
const models = new Map();
let wanted = {}; // what the link asks for besides: the map, the test, the step
let run = null; // { job, image, entries, ended }

async function describe(model) {
  if (!models.has(model)) models.set(model, await ask(`/api/model?model=${encodeURIComponent(model)}`));
  return models.get(model);
}

async function begin() {
  const names = await ask("/api/models");
  setColours(await ask("/api/colours"));
  find("model").replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  watchViewer(link);
  watchObjects();
  watchCompare(names, () => ({ ...view, ...choices(), best: run && run.best }), describe);
  Object.assign(view, { model: names[0] });
  await open(readLink());
}

// What the picture can be explained for: its likeliest classes, the objects found in it, or the words of the answer.
function choices() {
  const { top = [], objects = [], labels: cells = null, words = [] } = (run && run.image) || {};
  if (words.length) return { classes: [], choices: words.map((word, index) => ({ value: `target:${index}`, label: word })) };
  const kind = objects.length && !cells ? "box" : "target";
  return { classes: top, choices: (top.length ? top : objects).map(({ index, label: text }) => ({ value: `${kind}:${index}`, label: text })) };
}

async function open(asked) {
  const names = [...find("model").options].map((option) => option.value);
  view.model = names.includes(asked.model) ? asked.model : names[0];
  view.picture = asked.picture || "";
  for (const name of ["target", "box", "text", "prompt", "fills"]) view[name] = asked[name] || "";
  wanted = asked;
  await listPictures();
  await chooseModel();
}

async function listPictures() {
  const all = [...(await ask("/api/samples")), ...(await ask("/api/pictures"))];
  find("pictures").replaceChildren(...all.map((picture) => {
    const image = make("img", { src: `/api/pictures/${picture.id}`, alt: picture.name.replace(/\.\w+$/, "").replaceAll("-", " ") });
    const button = make("button", { type: "button", "data-picture": picture.id }, image);
    button.addEventListener("click", () => explain({ picture: picture.id, ...NOTHING }));
    return make("li", {}, button);
  }));
  if (view.picture && !all.some(({ id }) => id === view.picture)) {
    say("The picture of this link is not here any more; a sample is shown instead.");
    view.picture = "";
  }
}

async function chooseModel() {
  find("model").value = view.model;
  const model = await describe(view.model);
  if (!view.picture) view.picture = model.sample;
  const asks = model.prompt !== null;
  find("find-text").hidden = !model.takes_text;
  find("find-prompt").hidden = !asks;
  if (asks) find("prompt-query").value = view.prompt || model.prompt;
  showWords([], null, null);
  find("find-class").hidden = model.takes_text || !model.classes || ["dense", "boxes"].includes(model.output);
  find("text-query").value = view.text;
  find("more").replaceChildren(...model.recipes.filter(({ panel }) => !panel).map(({ recipe, family }) => make("option", { value: recipe }, `${recipe} (${family})`)));
  await explain({});
}

// Explain the picture anew with what changed.
async function explain(change) {
  say("");
  Object.assign(view, change);
  if (run && !run.ended) cancelJob(run.job);
  run = { job: null, image: null, entries: [], ended: false, best: null };
  closeViewer();
  find("panel").replaceChildren();
  for (const name of ["verdict", "fills-field", "fills-table"]) find(name).hidden = true;
  for (const button of find("pictures").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.picture === view.picture));
  link();
  if (models.get(view.model).takes_text && !view.text) {
    run.ended = true;
    find("seen").src = `/api/pictures/${view.picture}`;
    find("seen-name").textContent = "";
    find("classes").replaceChildren();
    showObjects({ objects: [] });
    say("This model compares pictures with texts and has no classes: type a text to look for.");
    return;
  }
  await trying(() => work(run, null));
}

// Run the panel, or one recipe more, and show what comes.
async function work(mine, recipes) {
  const chosen = (name) => (view[name] === "" ? null : Number(view[name]));
  const job = await startJob({ model: view.model, picture: view.picture, target: chosen("target"), box: chosen("box"), text: view.text, prompt: view.prompt, fills: Boolean(view.fills), recipes });
  if (mine !== run) { cancelJob(job.id); return; }
  mine.job = job.id;
  mine.ended = false;
  progress({ done: 0 }, "waiting for the model");
  const pending = [];
  const end = await follow(job.id, (kind, data) => {
    if (mine !== run) return;
    if (kind === "image" && !mine.image) pending.push(trying(() => showImage(mine, job.id, data)));
    if (kind === "map") pending.push(trying(async () => { await Promise.all(pending.slice(0, 1)); await showMap(mine, job.id, data); }));
    if (kind === "progress") progress(data, data.recipe);
    if (kind === "failure") say(`${data.recipe}: ${data.error}`);
    if (kind === "verdict" && recipes === null) pending.push(afterwards(pending, () => { if (mine === run) showVerdict(mine, data); }));
  });
  if (mine !== run) return;
  mine.ended = true;
  find("progress").hidden = true;
  if (end.state === "failed") say(end.error);
  if (end.state === "cancelled") say("Cancelled; what had come so far is below.");
  await Promise.all(pending);
  if (mine === run && recipes === null && mine.entries.length && !mine.chosen && !wanted.map) select(mine.entries[0]);
  if (recipes === null && mine.image) await trying(refreshCompare);
  // a link may name a map that the panel does not have
  const missing = wanted.map && !mine.entries.some(({ data }) => data.recipe === wanted.map);
  const offered = models.get(view.model).recipes.some(({ recipe }) => recipe === wanted.map);
  if (mine === run && recipes === null && end.state !== "cancelled" && missing && offered) await trying(() => work(mine, [wanted.map]));
}

// A verdict speaks of maps, so it is shown once they are.
async function afterwards(pending, show) {
  await Promise.all(pending);
  show();
}

function progress({ done, seconds_left: left }, text) {
  find("progress").hidden = false;
  find("progress-bar").value = done;
  find("progress-text").textContent = left === undefined ? text : `${text}; about ${left < 1.5 ? "a second" : `${Math.ceil(left)} seconds`} left`;
}

async function showImage(mine, job, data) {
  const address = `/api/jobs/${job}/pictures`;
  const [seen, insertion, deletion] = await Promise.all(["seen", "insertion", "deletion"].map((which) => pixels(`${address}/${which}`, data.size)));
  const found = data.labels_size ? await labels(job) : null;
  mine.image = { ...data, metricStep: data.metric_step, seen, insertion, deletion, labels: found };
  if (mine !== run) return;
  showObjects(mine.image, ({ index }) => explain({ ...NOTHING, [found ? "target" : "box"]: String(index) }));
  showWords(data.words, data.chosen, explainWord);
  find("seen").src = `${address}/seen`;
  find("seen-name").textContent = `${data.name}, as the model sees it`;
  const shown = data.top.some(({ index }) => index === data.target) || data.target === null ? data.top : [...data.top, { index: data.target, label: data.label, probability: data.probability }];
  find("classes").replaceChildren(...shown.map(({ index, label, probability }) => {
    const fill = make("span", { className: "fill" });
    fill.style.width = `${100 * (probability || 0)}%`;
    const button = make("button", { type: "button", "aria-pressed": String(index === data.target) }, make("span", {}, label), make("span", { className: "track" }, fill), make("span", { className: "number" }, percent(probability)));
    button.addEventListener("click", () => explain({ ...NOTHING, target: String(index) }));
    return make("li", {}, button);
  }));
}

async function showMap(mine, job, data) {
  let entry = mine.entries.find((each) => each.job === job && each.data.index === data.index);
  if (!entry) {
    entry = { job, data, item: make("li"), canvas: make("canvas", { "aria-hidden": "true" }) };
    entry.button = make("button", { type: "button", className: "map", "aria-pressed": "false" });
    entry.button.addEventListener("click", () => { mine.chosen = true; select(entry); });
    entry.item.append(entry.button);
    entry.ready = loadValues(mine, entry);
    mine.entries.push(entry);
  }
  entry.data = data;
  await entry.ready;
  if (mine !== run) return;
  label(entry);
  sort(mine);
  if (wanted.map === data.recipe) select(entry, wanted);
  else if (openMap() === entry) openViewer(entry, mine.image);
  else if (!openMap() && !wanted.map) select(entry);
}

async function loadValues(mine, entry) {
  entry.values = await values(entry.job, entry.data.index);
  entry.smooth = smoothed(entry.values, mine.image.size, entry.data.smoothing);
  drawOverlay(entry.canvas, mine.image.seen, entry.smooth, mine.image.size);
  outlineTarget(entry.canvas, mine.image);
}

// What stands below a map in the panel.
function label({ button, canvas, data }) {
  const judged = data.interval ? `mean, ${number(data.interval[0])} to ${number(data.interval[1])}` : "ins − del";
  const note = data.control ? "control" : data.class_agnostic ? "same for every class" : "";
  const tags = [note, data.smoothing ? "shown smoothed" : "", ...(data.flags || [])].filter(Boolean);
  button.replaceChildren(canvas, make("code", {}, data.recipe),
    make("span", { className: "row" }, make("span", { className: "score" }, data.scored ? number(data.score) : "scoring…"), make("span", { className: "small soft" }, data.scored ? judged : "")),
    ...tags.map((text) => make("span", { className: "tag" }, text)));
}

// The most faithful map first; a control stands before a method that only equals it.
function sort(mine) {
  const rank = ({ data }) => (data.scored && Number.isFinite(data.score) && !data.flags.includes("constant map") ? data.score : -Infinity);
  mine.entries.sort((a, b) => rank(b) - rank(a) || Number(Boolean(b.data.control)) - Number(Boolean(a.data.control)));
  const focused = document.activeElement;
  find("panel").replaceChildren(...mine.entries.map(({ item }) => item));
  if (focused && focused.classList.contains("map")) focused.focus({ preventScroll: true });
}

function select(entry, asked = {}) {
  if (asked.map) { wanted = {}; run.chosen = true; }
  openViewer(entry, run.image, asked);
  for (const each of run.entries) each.button.setAttribute("aria-pressed", String(each === entry));
  link();
}

function showVerdict(mine, data) {
  mine.best = data.best;
  const place = find("verdict");
  place.replaceChildren(make("strong", {}, data.headline), data.reason);
  place.classList.toggle("doubt", !data.best);
  place.hidden = false;
  find("fills-field").hidden = data.fills.length > 0;
  showFills(find("fills-table"), data);
}

function link() {
  const entry = openMap();
  writeLink({ ...view, map: entry ? entry.data.recipe : wanted.map, ...standing() });
}

async function send(file) {
  say("");
  const picture = await trying(() => upload(file));
  if (!picture) return;
  view.picture = picture.id;
  await trying(listPictures);
  await explain({ picture: picture.id, ...NOTHING });
  if (picture.reduced) say(`${picture.name} was reduced to ${picture.width}×${picture.height} pixels.`);
}

find("model").addEventListener("input", () => trying(async () => { Object.assign(view, { model: find("model").value, prompt: "", ...NOTHING }); await chooseModel(); }));
find("file").addEventListener("change", (event) => { if (event.target.files[0]) send(event.target.files[0]); event.target.value = ""; });
document.addEventListener("paste", (event) => { const file = [...event.clipboardData.files].find(({ type }) => type.startsWith("image/")); if (file) send(file); });
document.addEventListener("dragover", (event) => { event.preventDefault(); document.documentElement.classList.add("drag"); });
document.addEventListener("dragleave", () => document.documentElement.classList.remove("drag"));
document.addEventListener("drop", (event) => { event.preventDefault(); document.documentElement.classList.remove("drag"); if (event.dataTransfer.files[0]) send(event.dataTransfer.files[0]); });
find("cancel").addEventListener("click", () => { if (run && run.job) cancelJob(run.job); });
find("more-go").addEventListener("click", () => {
  const recipe = find("more").value, there = run.entries.find(({ data }) => data.recipe === recipe);
  if (there) { run.chosen = true; select(there); return; }
  wanted = { map: recipe };
  trying(() => work(run, [recipe]));
});
find("fills-go").addEventListener("click", () => { const entry = openMap(); wanted = run.chosen && entry ? { map: entry.data.recipe } : {}; explain({ fills: "1" }); });
find("class-query").addEventListener("input", () => trying(async () => {
  const found = await ask(`/api/classes?model=${encodeURIComponent(view.model)}&query=${encodeURIComponent(find("class-query").value)}`);
  find("class-list").replaceChildren(...found.map(({ index, label }) => make("option", { value: label, "data-index": index })));
}));
const explainQuery = () => trying(async () => {
  const query = find("class-query").value.trim();
  const found = query ? await ask(`/api/classes?model=${encodeURIComponent(view.model)}&query=${encodeURIComponent(query)}`) : [];
  if (!found.length) throw new Error(`there is no class called ${query || "nothing"}; type a number or a part of a name`);
  const exact = found.find(({ index, label }) => label === query || String(index) === query) || found[0];
  await explain({ ...NOTHING, target: String(exact.index) });
});
find("class-go").addEventListener("click", explainQuery);
find("class-query").addEventListener("keydown", (event) => { if (event.key === "Enter") explainQuery(); });
const explainText = () => explain({ ...NOTHING, text: find("text-query").value.trim() });
find("text-go").addEventListener("click", explainText);
find("text-query").addEventListener("keydown", (event) => { if (event.key === "Enter") explainText(); });
const explainWord = (target) => explain({ ...NOTHING, target });
find("every-word-go").addEventListener("click", () => trying(async () => {
  const mine = run, entry = [openMap(), ...mine.entries].find((each) => each && !each.data.control);
  if (!entry) throw new Error("wait for a map of a method, which is then used for every word");
  await showWordMaps({ model: view.model, picture: view.picture, prompt: view.prompt, recipes: [entry.data.recipe] }, mine.image, () => mine === run, explainWord);
}));
const askPrompt = () => explain({ ...NOTHING, prompt: find("prompt-query").value.trim() });
find("prompt-go").addEventListener("click", askPrompt);
find("prompt-query").addEventListener("keydown", (event) => { if (event.key === "Enter") askPrompt(); });
find("link-copy").addEventListener("click", () => trying(() => navigator.clipboard.writeText(location.href)));
for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => trying(() => navigator.clipboard.writeText(find(button.dataset.copy).textContent)));
addEventListener("hashchange", () => trying(() => open(readLink())));
addEventListener("pagehide", () => { if (run && run.job && !run.ended) fetch(`/api/jobs/${run.job}`, { method: "DELETE", keepalive: true }); });

trying(begin);
