// Small helpers for the page's elements.

export const find = (name) => document.getElementById(name);

export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name.startsWith("data-") || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

export function say(sentence) {
  find("error").textContent = sentence;
  find("error").hidden = !sentence;
}

// Run something that may fail, and say why in a sentence.
export async function trying(action) {
  try {
    return await action();
  } catch (error) {
    say(error.message);
    return null;
  }
}

export const percent = (share) => (share === null || share === undefined ? "" : `${(100 * share).toFixed(share > 0.995 || share < 0.1 ? 1 : 0)} %`);
export const number = (value) => (value === null || !Number.isFinite(value) ? "–" : value.toFixed(3).replace("-", "\u2212"));

// Call `moved` with the pixel that the pointer or the arrow keys stand on, and with null when the pointer leaves.
export function watchCursor(canvas, moved) {
  let place = null;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * canvas.width);
    const y = Math.floor(((event.clientY - box.top) / box.height) * canvas.height);
    place = [Math.max(0, Math.min(canvas.width - 1, x)), Math.max(0, Math.min(canvas.height - 1, y))];
    moved(place);
  });
  canvas.addEventListener("pointerleave", () => moved(null));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const stride = Math.max(1, Math.round(canvas.width / 64));
    const [x, y] = place || [Math.floor(canvas.width / 2), Math.floor(canvas.height / 2)];
    place = [Math.max(0, Math.min(canvas.width - 1, x + stride * step[0])), Math.max(0, Math.min(canvas.height - 1, y + stride * step[1]))];
    moved(place);
  });
}

export function readAt(values, [height, width], [rows, columns], [x, y]) {
  const row = Math.min(rows - 1, Math.floor((y * rows) / height));
  const column = Math.min(columns - 1, Math.floor((x * columns) / width));
  const value = values[y * width + x];
  return `value ${value.toPrecision(3).replace("-", "\u2212")} at pixel ${x}, ${y}; cell ${column + 1} of ${columns} across, ${row + 1} of ${rows} down`;
}
