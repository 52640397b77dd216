"""What a cell would become under ``%%fuse``: predicted, nothing built, no name landed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fusec.inspect.planner import put_back
from fusec.inspect.predict import Prediction
from fuselab.cell.plan import plan_cell
from fuselab.cell.program import CellProgram
from fuselab.session.cell_options import CellOptions, Frontend


class _Enough(BaseException):
    """The last function of the cell is predicted; what it returns is not known."""


class _Predicted:
    """Stands in for a compiled function: its first call is predicted.

    Args:
        function: What would be compiled.
        options: How.
        last: Whether nothing else of the cell is to be predicted.
        found: Where the prediction goes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, Any],
        last: bool,
        found: list[Prediction],
    ) -> None:
        import fusec

        self.function = function
        self._compiled = fusec.compile(function, **options)
        self._last = last
        self._found: list[Prediction] | None = found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Predict the first call; run it in eager where something else comes after it."""
        if self._found is not None:
            import fusec

            found, self._found = self._found, None
            found.append(fusec.predict(self._compiled, *args, **kwargs))
            if self._last:
                raise _Enough
        return self.function(*args, **kwargs)


def predict_cell(
    body: str, options: CellOptions, frontend: Frontend, namespace: Mapping[str, Any]
) -> Prediction:
    """Predict what ``%%fuse`` would make of a cell; the notebook stays as it is.

    What is not the cell's last tensor code runs in eager on the notebook's values, since what
    comes after may depend on it; tensors that it updates are put back.

    Args:
        body: The cell.
        options: As for ``%%fuse``.
        frontend: The shell that runs the cell.
        namespace: The notebook's names.

    Raises:
        SyntaxError: With the cell's own line.
        ValueError: ``options.out`` names something that the cell does not assign.
    """
    plan = plan_cell(
        body,
        name=options.name or f"cell_{frontend.number}",
        filename=f"<predicted cell {frontend.number}>",
        header="%%predict",
        out=options.out,
        transform=frontend.transform,
        transform_ast=frontend.transform_ast,
        interactivity=frontend.interactivity,
    )
    alone = [each.kind for each in plan.segments].count("fused") == 1
    alone = alone and plan.segments[-1].kind == "fused" and not plan.defines
    found: list[Prediction] = []

    def compiler(function: Callable[..., Any], defines: str) -> Any:
        return _Predicted(function, options.for_compiler(), alone, found)

    names = dict(namespace)
    program = CellProgram(plan, names, compiler)
    tensors = [value for value in names.values() if isinstance(value, torch.Tensor)]
    with contextlib.ExitStack() as after:
        if not alone:
            devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            after.enter_context(torch.random.fork_rng(list(devices)))
            after.enter_context(put_back(tensors))
        after.enter_context(contextlib.suppress(_Enough))
        program.run()
    return merged(plan.name, found)


def merged(name: str, found: list[Prediction]) -> Prediction:
    """Return several predictions as one."""

    def all_of(field: str) -> tuple[Any, ...]:
        return tuple(each for one in found for each in getattr(one, field))

    return Prediction(
        name,
        all_of("parts"),
        all_of("fallbacks"),
        tuple(dict.fromkeys(all_of("breaks"))),
        tuple(dict.fromkeys(all_of("guards"))),
        all_of("recompiles"),
    )


__all__ = ["merged", "predict_cell"]
