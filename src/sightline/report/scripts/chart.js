// The curves of insertion and deletion, with a mark where the slider stands.

const WIDTH = 420, HEIGHT = 150, LEFT = 34, RIGHT = 8, TOP = 8, BOTTOM = 24;

function element(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

export function drawCurves(place, curves, mark = null) {
  const all = Object.values(curves).flat();
  place.replaceChildren();
  if (!all.length) return;
  const low = Math.min(0, ...all), high = Math.max(1e-9, ...all, low === 0 && Math.max(...all) <= 1 ? 1 : 0);
  const across = (share) => LEFT + share * (WIDTH - LEFT - RIGHT);
  const up = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const chart = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "The model's answer as pixels change: insertion solid, deletion dashed" });
  for (const value of [low, high]) {
    chart.append(element("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: up(value), y2: up(value) }));
    chart.append(element("text", { x: LEFT - 5, y: up(value) + 4, "text-anchor": "end" }, String(+value.toFixed(2))));
  }
  chart.append(element("text", { x: LEFT, y: HEIGHT - 6 }, "0 %"), element("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, "100 % of pixels"));
  for (const [name, curve] of Object.entries(curves)) {
    const points = curve.map((value, step) => `${across(step / (curve.length - 1))},${up(value)}`).join(" ");
    chart.append(element("polyline", { class: name, points }));
  }
  Object.keys(curves).forEach((name, place) => {
    const x = LEFT + 90 + place * 100;
    chart.append(element("line", { class: name, x1: x, x2: x + 22, y1: HEIGHT - 10, y2: HEIGHT - 10 }), element("text", { x: x + 27, y: HEIGHT - 6 }, name));
  });
  if (mark && curves[mark.kind]) {
    const curve = curves[mark.kind], x = across(mark.step / (curve.length - 1));
    chart.append(element("line", { class: "mark", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    chart.append(element("circle", { class: "dot", cx: x, cy: up(curve[mark.step]), r: 4 }));
  }
  place.append(chart);
}
