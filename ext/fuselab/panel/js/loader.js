// Loads a script of the panel once a page, whichever of its widgets asks for it first.
const fetched = new Map();

// Texts come packed (gzip, base64): a saved notebook holds them.
const unpack = async (packed) => {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
};

const once = (packed, use) => {
  if (!fetched.has(packed)) fetched.set(packed, unpack(packed).then(use));
  return fetched.get(packed);
};

const load = (packed) =>
  once(packed, (text) => {
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    return import(url).finally(() => URL.revokeObjectURL(url));
  });

const dress = (packed) =>
  once(packed, (css) => {
    const style = document.createElement("style");
    style.textContent = css;
    document.head.appendChild(style);
  });

// shared: the model that has all scripts. Before anything can be shown: what a panel shows first.
export const warm = (shared) => {
  const texts = ["editor", "copy"].map((part) => load(shared.get(part)));
  for (const each of [dress(shared.get("css")), ...texts]) each.catch(() => {}); // render says why
};

// shared: the model that has all scripts; at: {model, el}, the widget to show.
export default async (shared, at) => {
  const [part] = await Promise.all([load(shared.get(at.model.get("part"))), dress(shared.get("css"))]);
  return part.default.render(at);
};
