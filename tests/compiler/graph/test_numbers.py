"""Numbers beside tensors that cannot hold them: as in eager, an error or a result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec

NUMBERS = (0.5, 2.0, -1, True, 300, 1e40, 2j)
DTYPES = (torch.int64, torch.uint8, torch.bool, torch.float16, torch.complex64)
Call = Callable[[torch.Tensor, Any], torch.Tensor]

PLACES = torch.tensor([0, 1])
FUNCTIONS: dict[str, Call] = {
    "add": lambda x, v: torch.add(x, x, alpha=v),
    "add, promoted": lambda x, v: torch.add(x.float(), x, alpha=v),
    "add of a number": lambda x, v: torch.add(x, 1, alpha=v),
    "sub": lambda x, v: torch.sub(x, x, alpha=v),
    "rsub": lambda x, v: torch.rsub(x, x, alpha=v),
    "sub_": lambda x, v: x.clone().sub_(v),
    "mul": lambda x, v: x * v,
    "mul_": lambda x, v: x.clone().mul_(v),
    "div_": lambda x, v: x.clone().div_(v),
    "floor_divide": lambda x, v: x // v,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "pow": lambda x, v: x**v,
    "pow of a number": lambda x, v: v**x,
    "pow_": lambda x, v: x.clone().pow_(v),
    "addmm": lambda x, v: torch.addmm(x, x, x, alpha=v),
    "addmm, beta": lambda x, v: torch.addmm(x, x, x, beta=v),
    "addmv": lambda x, v: torch.addmv(x[0], x, x[0], alpha=v),
    "addr": lambda x, v: torch.addr(x, x[0], x[0], alpha=v),
    "baddbmm": lambda x, v: torch.baddbmm(x[None], x[None], x[None], alpha=v),
    "addbmm": lambda x, v: torch.addbmm(x, x[None], x[None], alpha=v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "addcdiv": lambda x, v: torch.addcdiv(x, x, x, value=v),
    "index_add": lambda x, v: x.index_add(0, PLACES, x, alpha=v),
    "index_fill": lambda x, v: x.index_fill(0, PLACES[:1], v),
    "masked_fill": lambda x, v: x.masked_fill(x.bool(), v),
    "scatter": lambda x, v: torch.scatter(x, 0, PLACES[None] * 0, v),
    "fill_diagonal_": lambda x, v: torch.ones_like(x).fill_diagonal_(v),
    "full": lambda x, v: torch.full((2,), v, dtype=x.dtype),
    "full_like": torch.full_like,
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "where": lambda x, v: torch.where(x.bool(), x, v),
    "clamp": lambda x, v: x.clamp(min=v),
    "threshold": lambda x, v: torch.threshold(x, v, v),
    "hardtanh": lambda x, v: F.hardtanh(x, -1, v),
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "celu": F.celu,
    "softplus": F.softplus,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "lerp": lambda x, v: torch.lerp(x, x, v),
    "xlogy": torch.xlogy,
    "xlogy of the number": lambda x, v: torch.xlogy(v, x),
    "xlog1py": torch.special.xlog1py,
    "xlog1py of the number": lambda x, v: torch.special.xlog1py(v, x),
    "norm": lambda x, v: torch.linalg.vector_norm(x, v, dim=1),
    "norm of all": torch.norm,
    "logit": torch.logit,
    "nan_to_num": torch.nan_to_num,
    "heaviside": lambda x, v: torch.heaviside(x, torch.tensor(v)),
    "eq": lambda x, v: x == v,
    "gt": lambda x, v: x > v,
    "bits": lambda x, v: x & v,
    "shift": lambda x, v: x >> v,
    "isin": torch.isin,
}


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def outcome(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> object:
    """Return a result, or the class of an error."""
    torch._dynamo.reset()
    try:
        return function(x.clone())
    except Exception as error:
        if isinstance(error, torch._dynamo.exc.TorchRuntimeError):
            return RuntimeError  # fake tensors raised, of whichever class
        return type(getattr(error, "inner_exception", error))


def alike(found: object, wanted: object) -> bool:
    if isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor):
        close = torch.allclose(found, wanted, rtol=1e-2, equal_nan=True)
        return found.dtype == wanted.dtype and close
    if isinstance(found, type) and isinstance(wanted, type):
        return issubclass(found, wanted) or issubclass(wanted, found) or found is RuntimeError
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_beside_tensors(name: str) -> None:
    """What the captured graph does otherwise in eager is TorchDynamo's."""
    wrong = []
    for number in NUMBERS:

        def function(x: torch.Tensor, number: Any = number) -> torch.Tensor:
            return FUNCTIONS[name](x, number)

        for dtype in DTYPES:
            x = torch.tensor([[1, 2], [3, 4]]).to(dtype)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted, ours = outcome(function, x), outcome(fusec.compile(function), x)
                if alike(ours, wanted):
                    continue
                captured = outcome(torch.compile(function, backend="eager"), x)
            if not alike(ours, captured):
                wrong.append(f"{dtype} {number}: {ours}, not {wanted}")
    assert not wrong
