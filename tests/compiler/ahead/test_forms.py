"""What is precompiled may be anything that calls a module; any weights will do later."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import fusec


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x, scale=1.0):
        return self.outer(self.inner(x).relu()) * scale

    def part(self, x):
        return self.inner(x).tanh()


class Server:
    def __init__(self, net):
        self.net = net

    def serve(self, x):
        return self.net(x) + 1

    def __call__(self, x):
        return self.net(x).sin()


def called(net, x):
    return net(x).exp()


def closure(net):
    def step(x):
        return net(x) * 2

    return step


def in_inference_mode(net):
    return torch.inference_mode()(lambda x: net(x) - 1)


def in_a_dictionary(net):
    table = {"net": net}
    return lambda x: table["net"](x)  # noqa: PLW0108


def decorated(net):
    @functools.wraps(net.forward)
    def step(*args, **kwargs):
        return net(*args, **kwargs)

    return step


def without_gradients(net):
    return torch.no_grad()(lambda x: net(x) - 1)


FORMS = {
    "closure": closure,
    "lambda": lambda net: lambda x: net(x),  # noqa: PLW0108
    "default": lambda net: lambda x, net=net: net(x),
    "decorated": decorated,
    "no_grad": without_gradients,
    "inference mode": in_inference_mode,
    "method of an object": lambda net: Server(net).serve,
    "object": Server,
    "method of the module": lambda net: net.part,
    "forward": lambda net: net.forward,
    "partial": lambda net: functools.partial(called, net),
    "partial of the module": lambda net: functools.partial(net, scale=3.0),
    "partial of a method": lambda net: functools.partial(Server(net).serve),
    "in a dictionary": in_a_dictionary,
}


@pytest.mark.sample(7)
@pytest.mark.parametrize("form", FORMS)
def test_what_calls_a_module_is_taken_up(form, tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    assert fusec.precompile(FORMS[form](Net()), [(torch.ones(3, 6),)]).complete
    torch._dynamo.reset()
    for _ in range(2):
        net, x = Net(), torch.randn(3, 6)
        function = FORMS[form](net)
        compiled = fusec.compile(function)
        with fusec.frozen():
            found = compiled(x)
        expected = function(x)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == expected.requires_grad
        assert found.is_inference() == expected.is_inference()
        assert compiled.graphs == ()
        net.inner.register_forward_hook(lambda *_: None)  # what was captured had none
        with fusec.frozen(), pytest.raises(fusec.FrozenMiss):
            compiled(x)
