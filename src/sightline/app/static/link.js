// The view in the page's address: what is asked, and which map is open, so that a link opens it again.

const NAMES = ["model", "picture", "target", "box", "text", "prompt", "fills", "map", "layer", "test", "step"];

export function readLink() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(NAMES.filter((name) => given.has(name)).map((name) => [name, given.get(name)]));
}

export function writeLink(view) {
  const kept = Object.entries(view).filter(([name, value]) => NAMES.includes(name) && value !== null && value !== undefined && value !== "");
  const hash = `#${new URLSearchParams(Object.fromEntries(kept))}`;
  if (hash !== location.hash) history.replaceState(null, "", hash);
}
