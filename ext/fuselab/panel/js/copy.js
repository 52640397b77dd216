// A button that puts the text of the panel's editor on the clipboard, as it is shown right now.
const ICON = "fa fa-copy";

function render({ model, el }) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "lm-Widget jupyter-widgets jupyter-button widget-button fuselab-copy";
  button.title = model.get("tooltip");
  const icon = document.createElement("i");
  icon.className = ICON;
  const label = document.createElement("span");
  button.append(icon, " ", label);
  // Beside the button: within it, what is spoken would be no part of the button's name.
  const spoken = document.createElement("span");
  spoken.className = "fuselab-spoken";
  spoken.setAttribute("role", "status");
  const rest = () => {
    label.textContent = model.get("description");
    spoken.textContent = "";
  };
  rest();
  el.append(button, spoken);
  let timer = 0;
  const say = (text) => {
    label.textContent = spoken.textContent = text;
    clearTimeout(timer);
    timer = setTimeout(rest, 2000);
  };
  button.addEventListener("click", async () => {
    const editor = el.closest(".fuselab-panel")?.querySelector(".fuselab-editor textarea");
    if (!editor) return;
    try {
      await navigator.clipboard.writeText(editor.value);
      say("Copied");
    } catch {
      // Pages that are not on https or localhost have no clipboard, and a page may refuse it.
      if (select(editor.value)) {
        button.focus();
        say("Copied");
      } else {
        editor.focus();
        editor.select();
        say("Press Ctrl+C");
      }
    }
  });
  return () => clearTimeout(timer);
}

// Copies a text by selecting it, as a person would; returns whether the browser did.
function select(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.readOnly = true;
  area.style.cssText = "position:fixed;top:0;left:-9999px;white-space:pre";
  document.body.append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    area.remove();
  }
}

export default { render };
