"""Colors of what is drawn as SVG: the notebook's own in the panel, literal ones elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

# Kernels, told apart in gray and by color-blind readers (Okabe and Ito).
KERNELS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a400", "#8a6d3b")


@dataclass(frozen=True)
class Look:
    """Colors by role, as CSS.

    Attributes:
        text: Of words.
        quiet: Of what matters less.
        line: Of wires and frames.
        paper: What lies behind.
        fault: Of what is wrong.
        mark: Of what is picked.
    """

    text: str
    quiet: str
    line: str
    paper: str
    fault: str
    mark: str


# A static form has to read the same in every frontend and in an untrusted notebook.
PRINT = Look("#1a1a1a", "#5a5a5a", "#8a8a8a", "#ffffff", "#c0392b", "#1976d2")
# The panel follows the theme; the fallbacks are for frontends other than JupyterLab.
LIVE = Look(
    "var(--jp-ui-font-color1, #1a1a1a)",
    "var(--jp-ui-font-color2, #5a5a5a)",
    "var(--jp-ui-font-color3, #8a8a8a)",
    "var(--jp-layout-color1, #ffffff)",
    "var(--jp-error-color1, #c0392b)",
    "var(--jp-brand-color1, #1976d2)",
)


def kernel_colors(names: tuple[str, ...] | list[str]) -> dict[str, str]:
    """Return a color for each kernel, in order; they repeat after eight."""
    return {name: KERNELS[n % len(KERNELS)] for n, name in enumerate(dict.fromkeys(names))}
