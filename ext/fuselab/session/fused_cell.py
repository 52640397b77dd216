"""The result of a fused cell: what a notebook shows, a terminal prints and the panel works on.

The object is static for a reader: text/plain, text/html, image/png and JSON.  The workbench,
a live widget, is a second object made from it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusec.inspect.terminal import terminal_width
from fusec.report import seconds_by_stage
from fuselab.display import render, words
from fuselab.display.pages.page import picture
from fuselab.display.summary import Summary
from fuselab.errors import FuselabError
from fuselab.session.kernel_views import kernel_views
from fuselab.session.line_views import kernel_costs, line_views
from fuselab.session.measured_cell import MeasuredCell
from fuselab.session.rescheduling import rule_notes
from fuselab.session.saving import MIME

LEAST_SPARE = 1 << 20  # bytes: less is not worth a line


@dataclass(eq=False, repr=False)
class FusedCell(MeasuredCell):
    """A fused cell, or a function or module fused without one, in every form that shows it.

    What was compiled is in ``CompiledCell``, times and the verdict in ``MeasuredCell``.
    """

    _drawn: tuple[Any, bytes] | None = field(default=None, init=False)

    @property
    def max_error(self) -> float | None:
        """Largest difference to eager; None where it was not compared."""
        return self.summary().max_error

    # --- forms -------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """Freeze what there is to show."""
        from fusec.inspect.explain import kept_text  # imports the compiler

        with self.lock:
            if self.live and self.graphs:
                self.update()
            graphs = self.latest_graphs
            costs = kernel_costs(self)
            stages = seconds_by_stage(stage for graph in graphs for stage in graph.stages)
            return Summary(
                name=self.name,
                filename=self.filename,
                kernels=kernel_views(self, costs),
                graphs=len(graphs),
                eager=self.eager,
                fused=self.fused,
                others=dict(self.others),
                verdict=self.verdict,
                breaks=self.breaks,
                externs=self.externs,
                fallbacks=self.fallbacks,
                guards=self.guards,
                recompiles=self.recompiles,
                kept=tuple(text for graph in graphs if (text := kept_text(graph))),
                fusions=self.fusions,
                stages=tuple(stages.items()),
                plan=str(self.plan) if self.plan else "",
                notes=tuple(dict.fromkeys([*self._graph_notes(), *self.notes])),
                device=_device(),
                pending=self.pending if not graphs else (),
                traffic=self.traffic,
                lines=line_views(self, self.traffic, self._extern_seconds, costs),
                models=self._models,
                spare=self._spare(),
                called=sum(self._extern_seconds.values()) if self._extern_seconds else None,
                other_calls=dict(self._other_seconds),
                early=self.early,
                awaited=self.awaited,
            )

    def _spare(self) -> tuple[str, int] | None:
        """Return the name to give to ``--out``, and the bytes that are then not written."""
        plan = self.plan
        outputs = self.verdict.outputs if self.verdict else ()
        if plan is None or plan.out is not None or len(outputs) < 2:
            return None
        last = outputs[-1]
        if {output.name for output in outputs} != set(plan.assigns):
            return None
        # A call of ATen writes its result, whoever wants it.
        arguments = [a for k in self.latest_kernels.values() for a in k.signature.arguments]
        written = {argument.name for argument in arguments if argument.role != "in"}
        count = sum(output.bytes for output in outputs[:-1] if output.name in written)
        return (last.name, count) if count >= LEAST_SPARE else None

    def _graph_notes(self) -> Iterator[str]:
        if self.plan is not None:
            yield from self.plan.notes
            broken = any(not each.expected for each in self.breaks)
            failed = broken or self.fallbacks or self.stopped or self.replanned
            if not (self.graphs or self.pending or failed):
                yield "nothing here computes with tensors: the cell ran as plain Python"
        if self.stopped:
            figures = "; figures are of what ran before" if self.graphs else ""
            yield f"its latest run ended by an error: run the cell again{figures}"
        graphs = self.latest_graphs
        lines = [code for graph in graphs for code in getattr(graph, "traced", ())[:1]]
        if len(set(lines)) < len(lines):
            yield "lines that ran for several kinds of inputs count once for each in every figure"
        for graph in graphs:
            yield from getattr(graph, "notes", ())
        if others := len(self.kernels) - len(self.latest_kernels):
            found = words.count(others, "kernel")
            yield f"{found} of earlier inputs did not run this time: %fuse_kernels lists all"
        yield from rule_notes(self)

    def text(self) -> str:
        """The result for a terminal."""
        return render.summary_text(self.summary())

    def html(self) -> str:
        """The result as static HTML."""
        return render.summary_html(self.summary())

    def png(self) -> bytes | None:
        """The plot of eager against fused; None where nothing was timed."""
        if self.eager is None or self.fused is None or self.early:
            return None  # a picture compares, which these times do not yet
        from fuselab.display.plots import figures as plots

        with self.lock:
            # Drawing costs more than all else that a warm re-run does.
            shown = (self.eager, self.fused, dict(self.kernel_times), dict(self.others))
            if self._drawn is None or self._drawn[0] != shown:
                others = {words.peer_title(name): time for name, time in self.others.items()}
                figure = plots.speed_figure(
                    self.eager, self.fused, self.kernel_times, title=self.name, others=others
                )
                self._drawn = shown, plots.figure_png(figure)
            return self._drawn[1]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """Return every static form at once; frontends pick the one they can show."""
        with self.lock:
            summary = self.summary()
            png = self.png()
        encoded = base64.b64encode(png).decode() if png is not None else ""
        plot = picture(encoded, f"{self.name}: eager against fused") if encoded else ""
        bundle: dict[str, Any] = {
            "text/plain": render.summary_text(summary, terminal_width()),
            "text/html": render.summary_html(summary, plot),
            MIME: render.summary_json(summary),
        }
        return bundle | ({"image/png": encoded} if encoded else {})

    def __repr__(self) -> str:
        names = ", ".join(self.kernels) or "no kernels"
        return f"<FusedCell {self.name}: {names}>"

    # --- doing -------------------------------------------------------------------------------

    def workbench(self) -> Any:
        """Return the live panel: source, editor, Check, Keep, Revert, Tune, plots.

        Raises:
            FuselabError: It cannot be shown here: the panel is made of ipywidgets.
        """
        try:
            from fuselab.panel import workbench
        except ModuleNotFoundError as error:
            raise FuselabError(
                f"the panel is made of widgets, and {error.name} is not installed",
                "show .result, and use fuselab.edit, fuselab.tune and fuselab.revert instead",
            ) from None

        return workbench(self)

    def reschedule(self, *, apart: Sequence[str] = (), together: Sequence[str] = ()) -> list[str]:
        """Use other fusions from now on, after a check; without rules, the compiler's own again.

        Args:
            apart: Pairs of computations, as the fusion graph calls them, that must not share a
                kernel: ``"gelu:layer_norm"``. ``%%fuse --apart`` says the same in the cell.
            together: Pairs that share one wherever it is legal.

        Returns:
            The kernels whose edits went with them; they come back with the schedule before.

        Raises:
            FusecError: A pair that the cell does not compute, or a schedule that is wrong;
                everything is as it was.
        """
        from fuselab.session.rescheduling import reschedule

        return reschedule(self, apart, together)

    def save(self, folder: str | Path) -> Path:
        """Write stages, kernels and report as files; see ``fuselab.session.saving``."""
        from fuselab.session.saving import save

        return save(self, folder)

    def share(self, folder: str | Path = ".") -> list[Path]:
        """Write the result as one HTML page and a ``.py``, neither over a file that is there."""
        from fuselab.session.sharing import share

        return share(self, folder, replace=False)


def _device() -> str:
    import fusec

    describe = getattr(fusec, "device_summary", None)
    return str(describe()) if describe is not None else ""
