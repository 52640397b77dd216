"""The comparison of a whole graph with eager."""

from __future__ import annotations

import torch

from fusec.verify.check import check_graph
from fusec.verify.comparison import graph_outputs
from fusec.verify.comparison.graph_outputs import KeptReferences


def double(function):
    return lambda inputs: function([t.double() if t.is_floating_point() else t for t in inputs])


def eager(inputs):
    x, y = inputs
    return [(x * y).relu(), x.sum()]


def inputs():
    return [torch.randn(20, 30), torch.randn(30)]


def test_right():
    verdict = check_graph(eager, eager, double(eager), inputs(), names=["product", "total"])
    assert verdict.ok
    assert verdict.stage == "passed"
    assert [o.name for o in verdict.outputs] == ["product", "total"]
    assert verdict.graph.samples == verdict.eager.samples
    assert "interleaved" in verdict.graph.method


def test_wrong():
    verdict = check_graph(lambda i: [eager(i)[0] + 1, eager(i)[1]], eager, None, inputs())
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert "`output 0` differs from eager by 1" in verdict.reason
    assert verdict.graph is None


def test_dtype_shape_and_count():
    verdict = check_graph(lambda i: [eager(i)[0].double(), eager(i)[1]], eager, None, inputs())
    assert "float64 where eager gives float32" in verdict.reason
    verdict = check_graph(lambda i: [eager(i)[0][:1], eager(i)[1]], eager, None, inputs())
    assert "has shape (1, 30)" in verdict.reason
    verdict = check_graph(lambda i: eager(i)[:1], eager, None, inputs())
    assert "gives 1 output where eager gives 2" in verdict.reason


def test_random_numbers_are_the_same_for_both():
    given = inputs()
    state = torch.get_rng_state()
    dropout = lambda i: [torch.nn.functional.dropout(i[0], 0.5)]  # noqa: E731
    assert check_graph(dropout, dropout, None, given, timed=False).ok
    assert torch.equal(torch.get_rng_state(), state)


def test_updated_inputs_are_compared():
    def right(i):
        i[0].add_(1)
        return [i[1] * 2]

    def forgets(i):
        return [i[1] * 2]

    given = inputs()
    before = [t.clone() for t in given]
    verdict = check_graph(right, right, double(right), given)
    assert verdict.ok
    assert "input 0, updated in place" in [o.name for o in verdict.outputs]
    assert "restored before each" in verdict.graph.method
    verdict = check_graph(right, right, None, given, input_names=["weight", ""])
    assert "weight, updated in place" in [o.name for o in verdict.outputs]
    verdict = check_graph(forgets, right, None, given)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert "input 0, updated in place" in verdict.reason
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_a_float64_run_that_fails_is_left_out():
    def fails(inputs):
        raise RuntimeError("not implemented for float64")

    verdict = check_graph(eager, eager, fails, inputs(), timed=False)
    assert verdict.ok
    assert verdict.outputs[0].against_float64 is None


def test_integer_and_empty_inputs():
    function = lambda i: [i[0] + 1, i[1] * 2]  # noqa: E731
    given = [torch.arange(3), torch.empty(0, 2)]
    assert check_graph(function, function, double(function), given).ok


def test_references_are_kept_for_the_same_inputs():
    kept, given, runs = KeptReferences(), [*inputs(), 3], []

    def counted(tensors):
        runs.append(1)
        return eager(tensors)

    kept.prepare(counted, double(counted), given)
    again = [given[0].clone(), given[1].clone(), 3]
    known = kept.find(again)
    assert known is not None
    assert len(runs) == 2
    assert check_graph(eager, counted, double(counted), again[:2], timed=False, known=known).ok
    assert len(runs) == 2
    wrong = check_graph(lambda i: [-t for t in eager(i)], eager, None, again[:2], known=known)
    assert wrong.stage == "wrong"
    kept.prepare(counted, double(counted), again)
    assert len(runs) == 2
    for other in ([*again[:2], 4], [*again[:2], 3.0], [again[0] + 1, *again[1:]], again[:2]):
        assert kept.find(other) is None
    kept.prepare(counted, None, [*again[:2], 4])
    assert kept.find(again) is None


def test_references_of_all_graphs_keep_no_more_than_the_limit(monkeypatch):
    first, second, given = KeptReferences(), KeptReferences(), inputs()
    first.prepare(eager, double(eager), given)
    monkeypatch.setattr(graph_outputs, "_KEPT_BYTES", int(1.5 * first.nbytes))
    second.prepare(eager, double(eager), given)
    assert first.find(given) is None
    assert second.find(given) is not None
    assert 0 < graph_outputs.KEPT.total <= graph_outputs._KEPT_BYTES


def test_references_of_random_numbers_are_not_kept():
    kept, given, state = KeptReferences(), inputs(), torch.get_rng_state()
    dropout = lambda i: [torch.nn.functional.dropout(i[0], 0.5)]  # noqa: E731
    kept.prepare(dropout, None, given)
    assert kept.find(given) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_what_fails_in_eager_is_not_kept():
    def fails(tensors):
        raise RuntimeError("no such thing")

    kept, given, state = KeptReferences(), inputs(), torch.get_rng_state()
    kept.prepare(fails, None, given)
    assert kept.find(given) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_kept_results_stay_where_they_were():
    """What eager freed, a graph that writes nothing could return."""
    kept, given = KeptReferences(), inputs()
    kept.prepare(eager, None, given)
    known = kept.find(given)
    lazy = check_graph(
        lambda i: [torch.empty(20, 30), torch.empty(())],
        eager,
        None,
        given,
        timed=False,
        known=known,
    )
    assert not lazy.ok
