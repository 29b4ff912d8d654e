// Colours of maps, and pictures with pixels removed in a map's order. Maps are scaled here and nowhere else.

const FADE = 0.7;
let colours = null;

export function setColours(table) {
  colours = table;
}

// A map blurred for the eye, as the server's own pictures are: cut at a percentile, then a Gauss filter of this standard
// deviation in pixels.
export function smoothed(values, [height, width], sigma) {
  if (!sigma) return values;
  const limit = limitOf(values, 0.98);
  const cut = Float32Array.from(values, (value) => Math.max(-limit, Math.min(limit, value)));
  const reach = Math.round(3 * sigma);
  const kernel = Float64Array.from({ length: 2 * reach + 1 }, (_, place) => Math.exp(-0.5 * ((place - reach) / sigma) ** 2));
  const total = kernel.reduce((sum, weight) => sum + weight, 0);
  const along = (source, count, length, stride, step) => {
    const out = new Float32Array(source.length);
    for (let line = 0; line < count; line += 1) {
      for (let place = 0; place < length; place += 1) {
        let sum = 0;
        for (let offset = -reach; offset <= reach; offset += 1) {
          const near = Math.max(0, Math.min(length - 1, place + offset));
          sum += kernel[offset + reach] * source[line * stride + near * step];
        }
        out[line * stride + place * step] = sum / total;
      }
    }
    return out;
  };
  return along(along(cut, height, width, width, 1), width, height, 1, width);
}

// The magnitude that gets the full colour: a percentile of the magnitudes, or the maximum.
export function limitOf(values, share) {
  const sorted = Float32Array.from(values, Math.abs).sort();
  const peak = sorted[sorted.length - 1];
  if (share >= 1) return peak;
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (place - low) * (sorted[high] - sorted[low]) || peak;
}

export function kept(value, sign) {
  if (sign === "positive") return Math.max(value, 0);
  return sign === "negative" ? Math.min(value, 0) : value;
}

const colourOf = (fraction) => colours[Math.round(128 + 127 * Math.max(-1, Math.min(1, fraction)))];

// Lay a map over a picture: the stronger the value, the more of its colour shows. The picture's own colours are drawn
// back, since a blue sky would read as evidence against the target.
export function drawOverlay(canvas, picture, values, size, { opacity = 0.8, sign = "both", scale = 0.995 } = {}) {
  const limit = limitOf(values, scale) || 1;
  paint(canvas, size, (out) => {
    for (let pixel = 0; pixel < values.length; pixel += 1) {
      const fraction = Math.max(-1, Math.min(1, kept(values[pixel], sign) / limit));
      const colour = colourOf(fraction);
      const cover = opacity * Math.abs(fraction);
      const [red, green, blue] = picture.subarray(4 * pixel, 4 * pixel + 3);
      const grey = 0.299 * red + 0.587 * green + 0.114 * blue;
      for (let channel = 0; channel < 3; channel += 1) {
        const ground = FADE * grey + (1 - FADE) * picture[4 * pixel + channel];
        out[4 * pixel + channel] = (1 - cover) * ground + cover * colour[channel];
      }
      out[4 * pixel + 3] = 255;
    }
  });
  return limit;
}

// The pixels by falling value; equal ones keep their order, as in the metrics.
export function orderOf(values) {
  return Uint32Array.from(values, (_, pixel) => pixel).sort((a, b) => values[b] - values[a] || a - b);
}

// Draw a picture in which the first `count` pixels of the order come from `changed` and the others from `start`.
export function drawScrubbed(canvas, start, changed, order, count, size) {
  paint(canvas, size, (out) => {
    out.set(start);
    for (const pixel of order.subarray(0, count)) {
      for (let channel = 0; channel < 4; channel += 1) out[4 * pixel + channel] = changed[4 * pixel + channel];
    }
  });
}

export function drawLegend(canvas) {
  paint(canvas, [1, 255], (out) => {
    for (let place = 0; place < 255; place += 1) {
      const colour = colourOf((place - 127) / 127);
      out.set([...colour, 255], 4 * place);
    }
  });
}

export function drawCursor(canvas, [x, y]) {
  const context = canvas.getContext("2d");
  context.lineWidth = Math.max(1, canvas.width / 160);
  for (const [colour, grow] of [["#000", 1], ["#fff", 0]]) {
    context.strokeStyle = colour;
    context.strokeRect(x - 1 - grow, y - 1 - grow, 3 + 2 * grow, 3 + 2 * grow);
  }
}

// The outline of a place in the picture: `inside` tells whether a pixel of the canvas lies in it.
export function drawOutline(canvas, inside, colour = "#fff") {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const thick = Math.max(1, Math.round(Math.max(width, height) / 224));
  const edge = (x, y) => inside(x, y) && !(inside(x - thick, y) && inside(x + thick, y) && inside(x, y - thick) && inside(x, y + thick));
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      if (!edge(x, y)) continue;
      context.fillStyle = (Math.floor(x / (3 * thick)) + Math.floor(y / (3 * thick))) % 2 ? "#000" : colour;
      context.fillRect(x, y, 1, 1);
    }
  }
}

function paint(canvas, [height, width], fill) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  fill(image.data);
  context.putImageData(image, 0, 0);
}
