// A drawing that answers: parts of it can be picked, by mouse and by keyboard.
//
// Traits, all set by Python and only by Python:
//   html     what is shown; Python has escaped every text in it
//   image    a PNG shown below it, or nothing
//   spots    [[x, y, key, label], ...]: places on the image that can be picked, x and y from 0 to 1
//   label    what the image shows, for screen readers
//   kept     whether html is a trait, saved with the notebook; else it comes as a message
// Messages: {kind: "pick", key}, because a person picked something; {kind: "ready"}, because a
// view needs html that is not kept. Python answers {kind: "html", html}.
//
// In the html, data-pick="key" makes an element one to pick, and elements with the same
// data-link light up together while one of them is pointed at or has the focus.
function render({ model, el }) {
  el.classList.add("fuselab-picture");
  const text = document.createElement("div");
  const chart = document.createElement("div");
  chart.className = "fuselab-chart";
  el.append(text, chart);
  let url = "";

  // What had the focus gets it again in the new drawing: a keyboard must not fall out of it.
  const redraw = (box, change) => {
    const key = box.contains(document.activeElement) && document.activeElement.dataset.pick;
    const { scrollLeft, scrollTop } = box.firstElementChild ?? box;
    change();
    const inner = box.firstElementChild;
    if (inner) [inner.scrollLeft, inner.scrollTop] = [scrollLeft, scrollTop];
    if (key) box.querySelector(`[data-pick="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  };
  const write = (html) => redraw(text, () => (text.innerHTML = html));
  const onHtml = () => model.get("kept") && write(model.get("html"));
  const onMessage = ({ kind, html }) => kind === "html" && write(html);
  const onImage = () => redraw(chart, () => {
    const image = model.get("image");
    URL.revokeObjectURL(url);
    url = "";
    chart.replaceChildren();
    if (!image?.byteLength) return;
    url = URL.createObjectURL(new Blob([image], { type: "image/png" }));
    const shown = document.createElement("img");
    [shown.src, shown.alt, shown.className] = [url, model.get("label"), "fuselab-plot"];
    chart.append(shown);
    for (const [x, y, key, label] of model.get("spots")) {
      const spot = document.createElement("button");
      spot.className = "fuselab-spot";
      spot.dataset.pick = key;
      [spot.title, spot.ariaLabel] = [label, label];
      [spot.style.left, spot.style.top] = [`${x * 100}%`, `${y * 100}%`];
      chart.append(spot);
    }
  });

  const pick = (event) => {
    const target = event.target.closest("[data-pick]");
    if (!target || !el.contains(target)) return;
    event.preventDefault();
    event.stopPropagation();
    model.send({ kind: "pick", key: target.dataset.pick });
  };
  el.addEventListener("click", pick);
  el.addEventListener("keydown", (event) => {
    if (!event.target.closest("[data-pick]")) return;
    if (event.key === "Enter" || event.key === " ") {
      if (event.target.tagName === "BUTTON") event.stopPropagation(); // it clicks by itself
      else pick(event);
    }
  });

  const light = (event) => {
    const link = event.target.closest?.("[data-link]")?.dataset.link;
    for (const old of el.querySelectorAll(".fuselab-lit")) old.classList.remove("fuselab-lit");
    if (link === undefined || event.type === "pointerleave" || event.type === "focusout") return;
    for (const same of el.querySelectorAll(`[data-link="${CSS.escape(link)}"]`)) {
      same.classList.add("fuselab-lit");
    }
  };
  for (const kind of ["pointerover", "pointerleave", "focusin", "focusout"]) {
    el.addEventListener(kind, light);
  }

  model.on("change:html", onHtml);
  model.on("change:image", onImage);
  model.on("msg:custom", onMessage);
  onHtml();
  if (!model.get("kept")) model.send({ kind: "ready" });
  onImage();
  return () => {
    model.off("change:html", onHtml);
    model.off("change:image", onImage);
    model.off("msg:custom", onMessage);
    URL.revokeObjectURL(url);
  };
}

export default { render };
