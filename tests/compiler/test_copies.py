"""What `fusec.compile` returns is copied and pickled as what it was made of."""

from __future__ import annotations

import copy
import io
import pickle  # noqa: TID251  # what users do with models

import torch
from torch import nn

import fusec


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return (self.linear(x) * 2).relu()


@fusec.compile
def decorated(x):
    return (x * 2 + 1).relu()


def test_a_deep_copy_has_weights_of_its_own():
    module, x = Layer(), torch.randn(4, 8)
    compiled = fusec.compile(module)
    expected = compiled(x)
    other = copy.deepcopy(compiled)
    assert type(other) is type(compiled)
    assert torch.equal(other(x), expected)
    with torch.no_grad():
        other.function.linear.weight.zero_()
    assert not torch.equal(other(x), expected)
    assert torch.equal(compiled(x), expected)
    assert copy.copy(compiled).function is module


def test_a_compiled_module_is_pickled_as_the_module():
    module, x = Layer(), torch.randn(4, 8)
    compiled = fusec.compile(module)
    expected = compiled(x)
    assert type(pickle.loads(pickle.dumps(compiled))) is Layer
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    assert type(found) is Layer
    assert torch.allclose(found(x), expected)


def test_a_decorated_function_is_pickled_by_name():
    decorated(torch.randn(4))
    assert pickle.loads(pickle.dumps(decorated)) is decorated
