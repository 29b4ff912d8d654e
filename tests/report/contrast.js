// Return the visible texts whose contrast is below WCAG 2.1 AA (4.5, or 3 for large text), with their ratios.
// Opacity of ancestors and translucent backgrounds are blended in; pictures behind a text are not looked at.
() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const blend = (top, bottom) => [0, 1, 2].map((k) => top[k] * top[3] + bottom[k] * (1 - top[3]));
  const linear = (byte) => (byte / 255 <= 0.04045 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const ratio = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const failures = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const ignored = element.closest("script, style, title, desc, .clip, .skip");
    if (!node.textContent.trim() || ignored || !element.checkVisibility()) continue;
    const ancestors = [];
    for (let parent = element; parent; parent = parent.parentElement) ancestors.unshift(parent);
    let ground = [255, 255, 255];
    let opacity = 1;
    for (const ancestor of ancestors) {
      const style = getComputedStyle(ancestor);
      ground = blend(rgba(style.backgroundColor), ground);
      opacity *= Number(style.opacity);
    }
    const marker = element.closest(".point");
    if (marker) ground = blend(rgba(getComputedStyle(marker.querySelector("circle, rect")).fill), ground);
    const style = getComputedStyle(element);
    const ink = rgba(element.closest("svg") ? style.fill : style.color);
    ink[3] *= opacity;
    const contrast = ratio(blend(ink, ground), ground);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (large ? 3 : 4.5)) failures.push(`${node.textContent.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return failures;
}
