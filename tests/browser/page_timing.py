"""When something on the page can be seen, by the page's own clock."""

from __future__ import annotations

from lab import Panel

# What a person opens a tab for.
CONTENT = {
    "Timings": "table, .widget-html-content",
    "Fusion": "[data-pick]",
    "Stages": ".fuselab-code",
    "Guards and breaks": ".widget-html table",
    "Numerics": "table, .widget-html-content",
    "Tuning": ".widget-hprogress",
    "Kernels": ".fuselab-editor textarea",
}

# Presses a tab; returns the milliseconds until anything in it can be seen, and until what is
# wanted can.
_OPEN = """([root, title, wanted]) => new Promise((resolve, reject) => {
    const tab = [...root.querySelectorAll('[role=tab]')].find(t => t.textContent.trim() === title);
    const inside = root.querySelector('.widget-tab-contents');
    const visible = e => e.checkVisibility({ visibilityProperty: true })
        && e.getBoundingClientRect().height > 0;
    const started = performance.now();
    let sign = 0;
    const look = () => {
        const now = performance.now() - started;
        const open = [...inside.children].filter(visible);
        const ready = tab.getAttribute('aria-selected') === 'true' && open.length === 1;
        if (ready && !sign) sign = now;
        const found = open.flatMap(e => [...e.querySelectorAll(wanted)]);
        if (ready && found.some(e => visible(e) && (e.textContent.trim() || !e.matches(
            '.widget-html-content')))) resolve([sign, now]);
        else if (now > 300000) reject(new Error(`${title}: no ${wanted}`));
        else requestAnimationFrame(look);
    };
    const box = tab.getBoundingClientRect();
    const at = {
        bubbles: true, button: 0, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2,
    };
    tab.dispatchEvent(new PointerEvent('pointerdown', at));
    tab.dispatchEvent(new PointerEvent('pointerup', at));
    requestAnimationFrame(look);
})"""

# Watches the page: milliseconds from the first result (its table) to the panel with its editor.
SHOWN = """() => {
    let result = 0, resolve;
    const promise = new Promise(r => resolve = r);
    const seen = selector =>
        [...document.querySelectorAll(selector)].some(e => e.checkVisibility() && e.offsetHeight);
    const look = () => {
        if (!result && seen('.jp-OutputArea-output.jp-RenderedHTMLCommon table')) {
            result = performance.now();
        }
        if (result && seen('.fuselab-panel .fuselab-editor textarea')) {
            resolve(performance.now() - result);
        } else requestAnimationFrame(look);
    };
    look();
    return { promise };
}"""


def tab_times(panel: Panel, title: str) -> tuple[float, float]:
    """Open a tab; return the milliseconds until there is a sign of it, and until its content."""
    root = panel.root.element_handle()
    sign, content = panel.root.page.evaluate(_OPEN, [root, title, CONTENT[title]])
    return float(sign), float(content)


def open_tab(panel: Panel, title: str) -> float:
    """Open a tab; return after how many milliseconds its content stood on the page."""
    return tab_times(panel, title)[1]
