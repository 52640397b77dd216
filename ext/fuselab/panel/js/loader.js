// Loads a script of the panel once a page, whichever of its widgets asks for it first.
const fetched = new Map();

const load = (text) => {
  if (!fetched.has(text)) {
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    fetched.set(text, import(url).finally(() => URL.revokeObjectURL(url)));
  }
  return fetched.get(text);
};

const dress = (css) => {
  if (fetched.has(css)) return;
  const style = document.createElement("style");
  style.textContent = css;
  fetched.set(css, document.head.appendChild(style));
};

// shared: the model that has all scripts. Before anything can be shown: what a panel shows first.
export const warm = (shared) => {
  dress(shared.get("css"));
  for (const part of ["editor", "copy"]) load(shared.get(part)).catch(() => {}); // render says why
};

// shared: the model that has all scripts; at: {model, el}, the widget to show.
export default async (shared, at) => {
  dress(shared.get("css"));
  return (await load(shared.get(at.model.get("part")))).default.render(at);
};
