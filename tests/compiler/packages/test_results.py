"""What a package returns: whose memory it is, tensors in the code, defaults, reasons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fusec
from fusec.packages.binaries import default_names
from fusec.packages.errors import CannotPackage
from fusec.packages.runtime import NoSpecialization
from fusec.packages.runtime import load as load_alone

pytestmark = pytest.mark.linux("binaries of packages")


def packaged(function, example, folder: Path, **options):
    path = folder / "it.fuse"
    fusec.package(function, [example], path, binaries=default_names()[-1:], **options)
    return fusec.load(path), load_alone(path)


def alike(result, expected) -> None:
    torch.testing.assert_close(torch.as_tensor(result), expected)


def test_views_of_what_a_call_updates_are_views(tmp_path):
    def step(x):
        x.mul_(2)
        return x[0], x[1:].t(), x.sum()

    torch_too, alone = packaged(step, (torch.randn(4, 5),), tmp_path, dynamic={"x": (0,)})
    for run, make, rows in (
        (torch_too, torch.ones, 4),
        (torch_too, torch.ones, 7),
        (alone, lambda *n: np.ones(n, np.float32), 7),
    ):
        x = make(rows, 5)
        row, turned, total = run(x)
        alike(total, torch.tensor(10.0 * rows))
        x[:] = 7
        alike(row, torch.full((5,), 7.0))
        alike(turned, torch.full((5, rows - 1), 7.0))


def test_views_that_cannot_be_kept_are_refused(tmp_path):
    def step(x):
        x.mul_(2)
        return x[0]

    with pytest.raises(CannotPackage, match=r"returns a view of x, which it updates \(.*clone"):
        packaged(step, (torch.randn(4, 10)[:, ::2],), tmp_path)


def test_a_view_of_all_is_another_tensor(tmp_path):
    def function(x):
        y = x.sin()
        return x.detach(), y, y.view(4, 6), x

    runs = packaged(function, (torch.randn(4, 6),), tmp_path)
    for run, make in zip(runs, (torch.ones, lambda *n: np.ones(n, np.float32)), strict=True):
        x = make(4, 6)
        alias, y, same, given = run(x)
        assert given is x
        assert alias is not x
        assert same is not y
        x[:], y[:] = 2, 3
        alike(alias, torch.full((4, 6), 2.0))
        alike(same, torch.full((4, 6), 3.0))


def test_tensors_that_the_code_wrote_down(tmp_path):
    def function(x):
        kept = torch.tensor([1.0, 2.0, 3.0])
        return kept, x * kept, torch.tensor([[1, 2], [3, 4]]).t(), torch.tensor([]), kept[1:]

    x = torch.randn(3)
    runs = packaged(function, (x,), tmp_path)
    for run, given in zip(runs, (x, x.numpy()), strict=True):
        for _ in range(2):
            found = run(given)
            for result, expected in zip(found, function(x), strict=True):
                alike(result, expected)
            found[0][:] = 9  # the next call has its own


def test_results_that_torch_names(tmp_path):
    runs = packaged(lambda x: x.max(1), (torch.randn(3, 4),), tmp_path)
    x = torch.randn(3, 4)
    for run, given in zip(runs, (x, x.numpy()), strict=True):
        found = run(given)
        alike(found.values, x.max(1).values)
        alike(found.indices, x.max(1).indices)


SCALE, TABLE = torch.ones(3), torch.ones(3, 3)


def test_defaults_of_parameters(tmp_path):
    def function(x, sizes=(1, 2), *, names={"a": 1.5, "b": [None]}, scale=SCALE):  # noqa: B006
        return (x * sizes[1] + names["a"]) * scale

    x, scale = torch.randn(3), torch.ones(3)
    torch_too, alone = packaged(function, (x,), tmp_path)
    alike(torch_too(x, scale=scale), x * 2 + 1.5)
    alike(alone(x.numpy(), (1, 2), scale=scale), x * 2 + 1.5)
    for arguments, words in (
        ({"scale": scale, "sizes": (1, 3)}, r"sizes\[1\] is 3; packaged for 2"),
        ({"scale": scale, "sizes": [1, 2]}, "sizes is a list; packaged for a tuple"),
        ({"scale": scale, "sizes": (1,)}, "sizes has 1 parts; packaged for 2"),
        ({"scale": scale, "names": {"a": 1.5}}, "names has keys a; packaged for a, b"),
        ({}, "scale is not given, and its default, a Tensor, is not in the package"),
    ):
        with pytest.raises(NoSpecialization, match=words):
            torch_too(x, **arguments)
    with pytest.raises(NoSpecialization, match=r"a Tensor that numpy cannot take: .*grad"):
        alone(torch.randn(3, requires_grad=True), scale=scale)


def test_a_result_whose_size_depends_on_data(tmp_path):
    with pytest.raises(CannotPackage, match="more than one graph: the size of a result depends"):
        packaged(lambda x: x[x > 0], (torch.randn(5),), tmp_path)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: (x * SCALE, SCALE), r"returns SCALE: what a .* \(return a copy: .clone\(\)\)"),
        (lambda x: (x @ TABLE, TABLE.T), "returns a view of TABLE: what a package returns"),
        (lambda x: (x, SCALE[1:], SCALE[:2]), r"its result\[1\] and its result\[2\] share memory,"),
    ],
)
def test_tensors_that_a_package_holds_itself(function, words, tmp_path):
    """A package's weights stay its own: results are given to it, or memory of their own."""
    with pytest.raises(CannotPackage, match=words):
        packaged(function, (torch.randn(3),), tmp_path)
    x = torch.randn(3)
    for run in packaged(lambda x: (x * SCALE, SCALE.clone(), SCALE[1]), (x,), tmp_path)[:1]:
        run(x)[1].add_(1)
        alike(run(x)[1], SCALE)


def test_packaging_leaves_kept_inputs_alone(tmp_path):
    compiled = fusec.compile(lambda x: x.sin() + 1, keep_inputs=True, dynamic=False)
    examples = torch.randn(3), torch.randn(5)
    for x in examples:
        compiled(x)
    packaged(compiled, (examples[0],), tmp_path)
    for graph, x in zip(compiled.graphs, examples, strict=True):
        assert graph.last_inputs is not None
        assert graph.last_inputs[0].shape == x.shape
