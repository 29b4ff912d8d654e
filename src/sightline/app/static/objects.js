// Objects and regions that a detector or a segmentation finds: drawn over the picture, and chosen by a click or a key.

import { drawOutline } from "./shared/draw.js";
import { find, make, percent, watchCursor } from "./shared/page.js";

let shown = null; // { image, labels, choose }

// Tell whether a pixel of a canvas lies in an object, whatever the canvas's size.
export function insideOf(image, labels, object, { width, height }) {
  if (labels) {
    const [rows, columns] = image.labels_size;
    return (x, y) => x >= 0 && y >= 0 && x < width && y < height && labels[Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width)] === object.index;
  }
  const [left, upper, right, lower] = object.box;
  return (x, y) => x >= Math.floor(left * width) && x < Math.ceil(right * width) && y >= Math.floor(upper * height) && y < Math.ceil(lower * height);
}

// The outline of what is explained, over a map of it.
export function outlineTarget(canvas, image) {
  const object = (image.objects || []).find(({ index }) => index === image.chosen);
  if (object) drawOutline(canvas, insideOf(image, image.labels, object, canvas));
}

// Show the objects: as a list of buttons, and as outlines over the picture, which can be clicked.
export function showObjects(image, choose) {
  shown = { image, choose };
  const canvas = find("objects"), place = find("object-list");
  const none = !image.objects.length;
  find("object-field").hidden = canvas.hidden = place.hidden = none;
  find("seen").hidden = !none;
  if (none) return;
  Object.assign(canvas, { width: 2 * image.size[1], height: 2 * image.size[0] });
  draw(null);
  place.replaceChildren(...image.objects.map((object) => {
    const told = image.labels ? `${percent(object.score)} of the picture` : percent(object.score);
    const button = make("button", { type: "button", "aria-pressed": String(object.index === image.chosen) }, `${object.label} `, make("span", { className: "soft" }, told));
    button.addEventListener("click", () => choose(object));
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => draw(object));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => draw(null));
    return make("li", {}, button);
  }));
}

function draw(pointed) {
  const canvas = find("objects"), { image } = shown;
  const context = canvas.getContext("2d");
  context.putImageData(enlarged(image), 0, 0);
  for (const object of image.objects) {
    const strong = object.index === image.chosen || object === pointed;
    drawOutline(canvas, insideOf(image, image.labels, object, canvas), strong ? "#ffd84d" : "#fff");
    if (strong) name(context, object, canvas);
  }
}

function name(context, object, { width, height }) {
  context.font = `${Math.round(width / 16)}px system-ui, sans-serif`;
  const text = object.label, room = context.measureText(text).width + 6, line = Math.round(width / 13);
  const x = Math.min(object.box[0] * width, width - room), y = Math.max(line, object.box[1] * height);
  context.fillStyle = "#1b1d22";
  context.fillRect(x, y - line, room, line);
  context.fillStyle = "#ffd84d";
  context.fillText(text, x + 3, y - line / 4);
}

function enlarged({ seen, size: [height, width] }) {
  const out = new ImageData(2 * width, 2 * height);
  for (let y = 0; y < 2 * height; y += 1) {
    for (let x = 0; x < 2 * width; x += 1) {
      const from = 4 * ((y >> 1) * width + (x >> 1));
      for (let channel = 0; channel < 4; channel += 1) out.data[4 * (y * 2 * width + x) + channel] = seen[from + channel];
    }
  }
  return out;
}

// The object under a place of the canvas: of several the smallest, as it would be hidden by the others.
function under([x, y]) {
  const { image } = shown, canvas = find("objects");
  const area = ({ box: [left, upper, right, lower] }) => (right - left) * (lower - upper);
  const found = image.objects.filter((object) => insideOf(image, image.labels, object, canvas)(x, y));
  return found.sort((a, b) => area(a) - area(b))[0] || null;
}

export function watchObjects() {
  const canvas = find("objects");
  let place = null;
  watchCursor(canvas, (there) => { place = there; if (shown) draw(there && under(there)); });
  canvas.addEventListener("click", () => { const object = place && under(place); if (object) shown.choose(object); });
}
