// The kernel editor: one widget view over prism-code-editor.
//
// Traits, all set by Python and only by Python:
//   content   {document, text, seen, before, after}: what the editor shows, and how many lines
//             stand before the kernel itself and after it, which are folded
//   language  "cpp" or "python"
//   label     accessible name
//   mark      the line at fault, from 1; 0 for none
//   status    a sentence that screen readers speak when it changes
//   cell      [[number, text], ...]: the cell's own lines, shown beside the kernel
//   links     "21-24:3 25:3,4": which lines of the cell each line of the kernel computes
//   costs     "24:0.420:42%:42% of the time, ...;25:...": each line's share of the time, its words
// Messages, all sent because a person did something, never because a view was drawn:
//   {kind: "edit" | "check" | "keep", document, text, seen}
// and three that start nothing: {kind: "ready"}, there is a view; {kind: "near"}, somebody points
// at the panel or has come into it with the keyboard, for the first time; and the answer to
// Python's {kind: "sync", id}: {kind: "sync", id, document, text, seen}, what the editor holds now.
//
// Edits travel as messages rather than as a trait: a trait's changes are held back and merged
// while the kernel is busy, so a click on a button could overtake the text it is about.
import { createEditor } from "prism-code-editor";
import { defaultCommands, editHistory } from "prism-code-editor/commands";
import { cursorPosition } from "prism-code-editor/cursor";
import { matchBrackets } from "prism-code-editor/match-brackets";
import { highlightBracketPairs } from "prism-code-editor/highlight-brackets";
import "prism-code-editor/prism/languages/cpp";
import "prism-code-editor/prism/languages/python";
import "prism-code-editor/languages/clike";
import "prism-code-editor/languages/python";
import { sweepSoon } from "./leftovers.js";

const EDIT_DELAY = 150; // ms of quiet before an edit is sent
const [FEWEST, MOST] = [8, 22]; // lines that the editor shows before it scrolls
const LEAST_FOLDED = 3; // lines: fewer are not worth a fold
const VERDICT = 94; // pixels that are left free below the buttons, for four lines

// The number of the latest edit of each model, whichever view made it. Content that Python sent
// before it had seen that edit is stale and must not overwrite what was typed since.
const edits = new WeakMap();

// A slider of ipywidgets has a label and a value beside it that its handles do not know of: to a
// screen reader they would be nameless, and stand at the place in a list.
const watched = new WeakSet();
const CONTROLS = "button, select, input, summary, [role=tab], [role=slider], [tabindex='0']";
const mendControls = (panel) => {
  // In Notebook 7 the notebook would take the arrows from whatever has the focus.
  for (const control of panel.querySelectorAll(CONTROLS)) {
    if (!control.dataset.lmSuppressShortcuts) control.dataset.lmSuppressShortcuts = "true";
  }
  for (const slider of panel.querySelectorAll(".widget-slider, .widget-hslider")) {
    const label = slider.querySelector(".widget-label")?.textContent ?? "";
    const value = slider.querySelector(".widget-readout")?.textContent ?? "";
    const handles = slider.querySelectorAll(".noUi-handle");
    for (const [n, handle] of handles.entries()) {
      const name = handles.length > 1 ? `${label}: ${n ? "to" : "from"}` : label;
      if (handle.getAttribute("aria-label") !== name) handle.setAttribute("aria-label", name);
      if (handle.getAttribute("aria-valuetext") !== value) {
        handle.setAttribute("aria-valuetext", value);
      }
    }
  }
};
// Saving the notebook works in the panel as everywhere in it, also where its other keys do not.
const passSave = (event) => {
  const { key, code, keyCode, ctrlKey, metaKey, altKey, shiftKey } = event;
  if (!(ctrlKey || metaKey) || altKey || shiftKey || key.toLowerCase() !== "s") return;
  event.preventDefault();
  const copy = { key, code, keyCode, ctrlKey, metaKey, bubbles: true, cancelable: true };
  event.target.closest(".jp-Notebook")?.dispatchEvent(new KeyboardEvent("keydown", copy));
};
const watchControls = (el, near) => {
  const panel = el.closest(".fuselab-panel");
  if (!panel || watched.has(panel)) return;
  watched.add(panel);
  for (const kind of ["pointerenter", "focusin"]) {
    panel.addEventListener(kind, near, { once: true });
  }
  mendControls(panel);
  panel.addEventListener("keydown", (event) => {
    if (event.target.closest("[data-lm-suppress-shortcuts]")) passSave(event);
  });
  const kinds = { subtree: true, childList: true, characterData: true };
  const more = { attributes: true, attributeFilter: ["aria-valuetext"] };
  new MutationObserver(() => mendControls(panel)).observe(panel, { ...kinds, ...more });
};

// As fuselab/display/svg/colors.py has them.
const COLORS = "#0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #b8a400 #8a6d3b".split(" ");
const color = (index) => COLORS[Math.max(index, 0) % COLORS.length];

// Returns {kernel line: [cell lines]}.
const unpacked = (links) => {
  const found = {};
  for (const run of links.split(" ").filter(Boolean)) {
    const [lines, places] = run.split(":");
    const [first, last = first] = lines.split("-").map(Number);
    for (let n = first; n <= last; n++) found[n] = places.split(",").map(Number);
  }
  return found;
};

function render({ model, el }) {
  el.classList.add("fuselab-editor");
  // JupyterLab would take Enter, Tab and letters for itself.
  el.dataset.lmSuppressShortcuts = "true";
  const spoken = document.createElement("div");
  spoken.className = "fuselab-spoken";
  spoken.setAttribute("role", "status");
  el.append(spoken);

  const row = document.createElement("div");
  row.className = "fuselab-linked";
  const cell = document.createElement("div");
  cell.className = "fuselab-cell";
  cell.setAttribute("role", "group");
  cell.setAttribute("aria-label", "The cell; Enter on a line shows what became of it");
  const host = document.createElement("div");
  const bars = { before: document.createElement("button"), after: document.createElement("button") };
  row.append(cell, host);
  const keys = document.createElement("div");
  keys.className = "fuselab-keys";
  keys.textContent = "Ctrl+Enter checks, Ctrl+Shift+Enter keeps; Esc, then Tab, leaves the editor";
  keys.setAttribute("aria-hidden", "true"); // the editor's description says it
  el.append(row, keys);

  let { document: shown, text, seen } = model.get("content");
  edits.set(model, Math.max(seen, edits.get(model) ?? 0));
  const editor = createEditor(
    host,
    { value: text, language: model.get("language"), tabSize: 4, insertSpaces: true },
    defaultCommands(),
    editHistory(),
    cursorPosition(),
    matchBrackets(false),
    highlightBracketPairs(),
  );
  const { textarea, container, wrapper } = editor;

  // --- what is folded -----------------------------------------------------------------------
  // The textarea has the whole text all the time: folding hides lines, it never takes them out.
  const open = { before: false, after: false };
  const about = { before: "what it reads and writes, its tunables", after: "what it calls" };
  const count = () => editor.lines.length - 1;
  const folded = () => {
    const { before = 0, after = 0 } = model.get("content");
    const fits = before + after < count();
    const hidden = (side, lines) => (fits && lines >= LEAST_FOLDED && !open[side] ? lines : 0);
    return { before: hidden("before", before), after: hidden("after", after), fits };
  };
  const paintFolds = () => {
    const { before, after, fits } = folded();
    wrapper.style.setProperty("--fuselab-lines", count());
    wrapper.style.setProperty("--fuselab-before", before);
    wrapper.style.setProperty("--fuselab-after", after);
    wrapper.classList.toggle("fuselab-folded", before + after > 0);
    for (const [side, bar] of Object.entries(bars)) {
      const lines = model.get("content")[side] ?? 0;
      bar.hidden = !fits || lines < LEAST_FOLDED;
      bar.textContent = `${open[side] ? "▾" : "▸"} ${lines} lines ${side} it: ${about[side]}`;
      bar.setAttribute("aria-expanded", String(open[side]));
    }
  };
  const unfold = (...sides) => {
    const closed = sides.filter((side) => folded()[side]);
    if (!closed.length) return;
    const { scrollTop } = container;
    const shift = closed.includes("before") ? folded().before : 0;
    for (const side of closed) open[side] = true;
    paintFolds();
    container.scrollTop = scrollTop + shift * lineHeight();
    textarea.scrollTop = 0;
  };
  const lineAt = (place) => textarea.value.slice(0, place).split("\n").length;
  // Before a key moves the cursor into what is folded, or the browser would scroll the whole
  // notebook to where the cursor would be if it were shown.
  const foresee = ({ key, ctrlKey, metaKey }) => {
    const far = ctrlKey || metaKey;
    const step = { PageUp: -MOST, PageDown: MOST, ArrowUp: -1, ArrowDown: 1 }[key] ?? 0;
    const end = { Home: -Infinity, End: Infinity, ArrowUp: -Infinity, ArrowDown: Infinity }[key];
    const { selectionStart, selectionEnd, selectionDirection } = textarea;
    const cursor = selectionDirection === "backward" ? selectionStart : selectionEnd;
    const move = far && end ? end : step;
    if (move) unfold(...hides(lineAt(cursor) + move));
  };
  const lineHeight = () => editor.lines[1]?.offsetHeight || 18;
  const hides = (line) => {
    const { before, after } = folded();
    if (line <= before) return ["before"];
    return line > count() - after ? ["after"] : [];
  };
  for (const [side, bar] of Object.entries(bars)) {
    bar.type = "button";
    bar.className = "fuselab-fold";
    bar.addEventListener("click", () => {
      if (folded()[side]) unfold(side);
      else {
        open[side] = false;
        paintFolds();
      }
      fit();
    });
  }
  host.prepend(bars.before);
  host.append(bars.after);
  // The cursor stands where the kernel begins, not in what is hidden.
  const begin = () => {
    [open.before, open.after] = [false, false];
    paintFolds();
    const lines = textarea.value.split("\n").slice(0, model.get("content").before ?? 0);
    const place = lines.reduce((sum, line) => sum + line.length + 1, 0);
    textarea.setSelectionRange(place, place);
    container.scrollTo(0, 0);
    fit();
  };

  // --- how high it is: the buttons and the verdict below are in view with it ------------------
  let height = "";
  const room = () => {
    const panel = el.closest(".fuselab-panel");
    const verdict = panel?.querySelector(".fuselab-verdict");
    if (!verdict?.offsetParent) return Infinity; // not in the page yet, or another tab is open
    let most = window.innerHeight;
    for (let up = panel.parentElement; up; up = up.parentElement) {
      const scrolls = ["auto", "scroll"].includes(getComputedStyle(up).overflowY);
      if (scrolls && up.scrollHeight > up.clientHeight + 1) most = Math.min(most, up.clientHeight);
    }
    const rest = verdict.getBoundingClientRect().top - panel.getBoundingClientRect().top;
    return most - (rest - container.offsetHeight) - VERDICT;
  };
  const fit = () => {
    if (container.style.height !== height) return; // somebody has drawn it to a height of their own
    const { before, after } = folded();
    const pixels = (lines) => lines * lineHeight() + 16;
    const wanted = pixels(Math.min(Math.max(count() - before - after, FEWEST), MOST));
    height = `${Math.round(Math.max(Math.min(wanted, room()), pixels(FEWEST)))}px`;
    container.style.height = height;
    height = container.style.height;
    cell.style.maxHeight = height;
  };
  // What stands round it comes and goes: parts that are made later, tunables, windows resized.
  const resized = new ResizeObserver(() => requestAnimationFrame(fit));
  window.addEventListener("resize", fit);
  begin();

  // --- what the person does -----------------------------------------------------------------
  let timer = 0;
  const send = (kind) => {
    clearTimeout(timer);
    timer = 0;
    model.send({ kind, document: shown, text: editor.value, seen: edits.get(model) });
  };
  editor.on("update", (value) => {
    paintFolds();
    paintMark();
    paintLinks();
    if (container.classList.contains("fuselab-counted")) paintCosts();
    if (value === text) return;
    text = value;
    const number = edits.get(model) + 1;
    edits.set(model, number);
    // Local only: a second view follows at once, and saving the notebook saves the edit.
    model.set("content", { ...model.get("content"), text, seen: number });
    clearTimeout(timer);
    timer = setTimeout(send, EDIT_DELAY, "edit");
  });
  // A click on a button takes the focus first, so the edit is on its way before the click.
  textarea.addEventListener("blur", () => timer && send("edit"));

  const onKey = (event) => {
    foresee(event);
    if (!(event.ctrlKey || event.metaKey) || event.altKey) return;
    if (event.key === "Enter") {
      event.preventDefault();
      event.stopImmediatePropagation();
      if (!event.repeat) send(event.shiftKey ? "keep" : "check");
    } else passSave(event);
  };
  textarea.addEventListener("keydown", onKey, true);
  // Typing is not the notebook's business; the editor's own commands listen inside of here.
  el.addEventListener("keydown", (event) => event.stopPropagation());

  // --- what Python says ---------------------------------------------------------------------
  const onContent = () => {
    const content = model.get("content");
    if (content.document !== shown) {
      if (timer) send("edit"); // of the text that leaves
      ({ document: shown, text } = content);
      edits.set(model, Math.max(content.seen, edits.get(model)));
      editor.setOptions({ value: text, language: model.get("language") });
      editor.extensions.history.clear();
      begin();
    } else if (content.seen >= edits.get(model)) {
      // Another window's edits count on: what is typed here next must be newer.
      edits.set(model, content.seen);
      if (content.text !== editor.value) {
        clearTimeout(timer);
        timer = 0;
        replaceText(content.text);
      }
      paintFolds();
    }
  };
  // Replaces the text so that undo brings the old one back, and leaves the focus where it is.
  const replaceText = (value) => {
    text = value;
    const { selectionStart, selectionEnd } = textarea;
    const { scrollTop, scrollLeft } = editor.container;
    textarea.dispatchEvent(new InputEvent("beforeinput", { inputType: "insertReplacementText" }));
    textarea.value = value;
    textarea.setSelectionRange(selectionStart, selectionEnd);
    textarea.dispatchEvent(new InputEvent("input"));
    editor.container.scrollTo(scrollLeft, scrollTop);
  };
  const onLanguage = () => editor.setOptions({ language: model.get("language") });
  const onLabel = () => {
    textarea.setAttribute("aria-label", model.get("label"));
    textarea.setAttribute(
      "aria-description",
      "Ctrl+Enter checks, Ctrl+Shift+Enter keeps, Tab indents, Escape leaves the editor",
    );
  };
  const paintMark = () => {
    const line = model.get("mark");
    el.querySelector(".fuselab-fault")?.classList.remove("fuselab-fault");
    textarea.toggleAttribute("aria-invalid", line > 0);
    const target = editor.lines[line];
    if (line > 0) target?.classList.add("fuselab-fault");
    return line > 0 ? target : undefined;
  };
  // Shows a line. Scrolls the editor alone; scrollIntoView would move the whole notebook.
  const reveal = (line, target) => {
    unfold(...hides(line));
    const box = container.getBoundingClientRect();
    const { top, bottom } = target.getBoundingClientRect();
    if (top < box.top || bottom > box.bottom) container.scrollTop += top - box.top - box.height / 2;
  };
  const onMark = () => {
    const target = paintMark();
    if (target) reveal(model.get("mark"), target);
  };
  // --- the cell's lines beside it -----------------------------------------------------------
  const linked = (line) => editor.container.querySelectorAll(`[data-links~="${line}"]`);
  const paintLinks = () => {
    const links = unpacked(model.get("links"));
    const order = model.get("cell").map(([number]) => number);
    for (let n = 1; n < editor.lines.length; n++) {
      const places = links[n];
      const line = editor.lines[n];
      if (places?.length) {
        line.dataset.links = places.join(" ");
        line.style.setProperty("--fuselab-link", color(order.indexOf(places[0])));
      } else if (line.dataset.links) {
        delete line.dataset.links;
        line.style.removeProperty("--fuselab-link");
      }
    }
  };
  // --- what each line costs, beside its number ------------------------------------------------
  const paintCosts = () => {
    const known = new Map();
    for (const each of model.get("costs").split(";").filter(Boolean)) {
      const [number, share, words, ...details] = each.split(":");
      known.set(Number(number), { share, words, details: details.join(":") });
    }
    container.classList.toggle("fuselab-counted", known.size > 0);
    const digits = String(count()).length;
    for (let n = 1; n < editor.lines.length; n++) {
      const { dataset, style } = editor.lines[n];
      const cost = known.get(n);
      if (known.size) dataset.no = `${(cost?.words ?? "").padStart(4)} ${String(n).padStart(digits)}`;
      else delete dataset.no;
      if (cost) [dataset.cost, dataset.details] = [cost.words, cost.details];
      else for (const name of ["cost", "details"]) delete dataset[name];
      if (cost) style.setProperty("--fuselab-cost", `${Math.round(100 * cost.share ** 0.7)}%`);
      else style.removeProperty("--fuselab-cost");
    }
    return known;
  };
  // Whoever asks where the time goes sees the line that takes most, also where it was folded.
  let counted = model.get("costs");
  const onCosts = () => {
    const before = counted;
    counted = model.get("costs");
    const most = [...paintCosts()].sort(([, one], [, other]) => other.share - one.share)[0];
    const target = most && editor.lines[most[0]];
    if (target && !before) reveal(most[0], target);
  };
  const light = (lines) => {
    for (const old of row.querySelectorAll(".fuselab-lit")) old.classList.remove("fuselab-lit");
    for (const line of lines) {
      cell.querySelector(`[data-line="${line}"]`)?.classList.add("fuselab-lit");
      for (const same of linked(line)) same.classList.add("fuselab-lit");
    }
  };
  const showCell = () => {
    const known = new Set(Object.values(unpacked(model.get("links"))).flat());
    cell.replaceChildren();
    cell.hidden = known.size === 0;
    for (const [index, [number, text]] of model.get("cell").entries()) {
      const line = document.createElement(known.has(number) ? "button" : "div");
      line.dataset.line = number;
      const label = document.createElement("span");
      label.className = "fuselab-cell-no";
      label.textContent = number;
      line.append(label, text);
      if (known.has(number)) line.style.setProperty("--fuselab-link", color(index));
      cell.append(line);
    }
    paintLinks();
  };
  const lineOf = (event) => event.target.closest?.("[data-line]")?.dataset.line;
  for (const kind of ["pointerover", "focusin"]) {
    cell.addEventListener(kind, (event) => light(lineOf(event) ? [lineOf(event)] : []));
  }
  row.addEventListener("pointerleave", () => light([]));
  cell.addEventListener("click", (event) => {
    const first = lineOf(event) && linked(lineOf(event))[0];
    if (!first) return;
    light([lineOf(event)]);
    unfold(...hides([...editor.lines].indexOf(first)));
    const box = container.getBoundingClientRect();
    container.scrollTop += first.getBoundingClientRect().top - box.top - box.height / 4;
  });
  // The textarea lies over the lines, so a pointer is found by its height.
  textarea.addEventListener("pointermove", (event) => {
    const under = document.elementsFromPoint(event.clientX, event.clientY);
    const line = under.find((e) => e.classList?.contains("pce-line"));
    light(line?.dataset.links?.split(" ") ?? []);
    const details = line?.dataset.details ?? "";
    if (textarea.title !== details) textarea.title = details;
  });
  editor.on("selectionChange", () => {
    const at = lineAt(textarea.selectionStart);
    // Whoever moves into what is folded, by a key or by undoing, sees it.
    if (document.activeElement === textarea) {
      unfold(...new Set([...hides(at), ...hides(lineAt(textarea.selectionEnd))]));
    }
    light(editor.lines[at]?.dataset.links?.split(" ") ?? []);
  });

  const onStatus = () => {
    spoken.textContent = model.get("status");
    // What was asked for here is seen here, on a low screen too; where somebody reads elsewhere,
    // the page stays as it is.
    const panel = el.closest(".fuselab-panel");
    if (!model.get("status") || !panel?.contains(document.activeElement)) return;
    requestAnimationFrame(() => {
      panel.querySelector(".fuselab-verdict")?.scrollIntoView({ block: "nearest" });
    });
  };

  // A button's click and the edit before it may arrive on different threads of the kernel, in any
  // order: whoever works on the text asks for it.
  const onMessage = ({ kind, id }) => {
    if (kind !== "sync") return;
    clearTimeout(timer);
    timer = 0;
    model.send({ kind, id, document: shown, text: editor.value, seen: edits.get(model) });
  };

  const listeners = [
    ["msg:custom", onMessage],
    ["change:content", onContent],
    ["change:language", onLanguage],
    ["change:label", onLabel],
    ["change:mark", onMark],
    ["change:status", onStatus],
    ["change:cell", showCell],
    ["change:links", showCell],
    ["change:costs", onCosts],
  ];
  for (const [name, listener] of listeners) model.on(name, listener);
  onLabel();
  paintMark();
  showCell();
  paintCosts();
  const watch = (frames) => {
    if (el.isConnected) {
      watchControls(el, () => model.send({ kind: "near" }));
      resized.observe(el.closest(".fuselab-panel") ?? el);
    } else if (frames) requestAnimationFrame(() => watch(frames - 1));
  };
  watch(100); // once it is in the page
  model.send({ kind: "ready" });
  return () => {
    if (timer) send("edit");
    resized.disconnect();
    window.removeEventListener("resize", fit);
    for (const [name, listener] of listeners) model.off(name, listener);
    editor.remove();
    sweepSoon(model.widget_manager);
  };
}

export default { render };
