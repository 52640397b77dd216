"""Lab 5, a loop-level IR, define by run: lowering, printing, interpreting."""

from __future__ import annotations

from fuselab.judge.task import PythonTask
from fuselab.labs.content import loop_values
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

_VALUES = """
# A value says what one element is:
#   7                            a number
#   ["load", "x", ["i0", "i1"]]  an element of the tensor x
#   ["add", a, b]                of two values; sub and mul as well
#   ["relu", a]
#   ["sum", "r0", 5, a]          the sum of a for r0 = 0, ..., 4
# An index is a whole number, a variable's name, or [sign, index, index] with + - or *.
"""
_PROGRAM = """
# A program: {"inputs": {"x": [2, 3], "y": [3]}, "steps": [["t0", "add", ["x", "y"], None], ...]}
# A step is [name, operator, names of its inputs, argument].
"""

LAB = Lab(
    5,
    "loop_ir",
    "A loop-level IR, define by run",
    45,
    (
        PythonTask(
            "lab05.interpret",
            "an interpreter",
            "interpret",
            points=2,
            start=_VALUES
            + """
def interpret(value, shape, data):
    \"\"\"Return the list of all elements of a tensor of that shape, the last dimension fastest.

    Its element at i0, i1, ... is `value`. data: of each tensor that is loaded its nested lists.
    \"\"\"
    ...
""",
            hints=(
                "Two functions that call themselves: one for values, one for indices. Both need a "
                "dictionary of variables: i0, i1, ... and those of sums.",
                'load: begin with data[name] and take found = found[place] for each index. "sum": '
                "the value of its body with {**variables, name: n} for every n, added up.",
                "itertools.product(*(range(size) for size in shape)) yields the places in order; "
                "for an empty shape it yields one, of no indices, which is right.",
            ),
            calls=loop_values.interpret_calls,
            check=lambda calls, results: first_wrong(
                "interpret", calls, results, loop_values.interpret
            ),
        ),
        PythonTask(
            "lab05.pointwise",
            "lowering pointwise operators",
            "lower",
            points=3,
            start=_PROGRAM
            + """
def lower(program):
    \"\"\"Return (shape, value): of the last step's result, with its element at i0, i1, ...

    Operators: add, sub, mul and relu. Inputs are broadcast as in PyTorch: shapes are lined up at
    the end, and a size of 1 goes with any.
    \"\"\"
    ...
""",
            hints=(
                "Keep of each tensor its shape and a function: given a list of indices, it returns "
                "the value there. For an input that is a load.",
                "relu's function calls its input's function with the same indices and puts the "
                'value into ["relu", ...]. At the end, call the last one with ["i0", "i1", ...].',
                "Broadcasting: an input of fewer dimensions takes the last indices only, and 0 in "
                "place of the index where its size is 1. Mind that a function made in a loop looks "
                "at the loop's variables when it is called: make it in a function of its own.",
            ),
            calls=lambda rng: loop_values.programs(rng, loop_values.POINTWISE),
            check=loop_values.check_lowered,
        ),
        PythonTask(
            "lab05.views",
            "views are indices",
            "lower",
            points=3,
            start="""
def lower(program):
    \"\"\"Return (shape, value), as in part 2, of programs that have views as well.

    ["t0", "permute", ["x"], dims]: dimension d of the result is dimension dims[d] of x
    ["t0", "flip", ["x"], dim]: that dimension the other way round
    ["t0", "slice", ["x"], [dim, start, step]]: x[start::step] in that dimension
    \"\"\"
    ...
""",
            hints=(
                "A view computes nothing: its function calls its input's function with other "
                "indices.",
                'flip: ["-", size - 1, index]. slice: ["+", start, ["*", step, index]], and the '
                "size is len(range(start, size, step)).",
                "permute: the index of dimension d goes to dimension dims[d] of the input: "
                "inner([index[dims.index(n)] for n in range(rank)]).",
            ),
            calls=lambda rng: loop_values.programs(
                rng, (*loop_values.POINTWISE, *loop_values.VIEWS)
            ),
            check=loop_values.check_lowered,
        ),
        PythonTask(
            "lab05.sums",
            "reductions",
            "lower",
            points=2,
            start="""
def lower(program):
    \"\"\"Return (shape, value), as in part 3, of programs that have sums as well.

    ["t0", "sum", ["x"], dim]: the sum over one dimension, which goes.
    \"\"\"
    ...
""",
            hints=(
                "The result has one dimension less. Given its indices, which elements of the input "
                "are added up?",
                'inner(index[:dim] + ["r0"] + index[dim:]), for r0 = 0, 1, ... But what if that '
                "has a sum in it as well?",
                'Each sum needs a name of its own: count them, f"r{n}".',
            ),
            calls=lambda rng: loop_values.programs(
                rng, (*loop_values.POINTWISE, *loop_values.VIEWS, "sum")
            ),
            check=loop_values.check_lowered,
        ),
        PythonTask(
            "lab05.text",
            "the text of a loop's body",
            "text",
            points=2,
            start="""
def text(value, shapes):
    \"\"\"Return a value without sums as an expression in C: "relu(x[i0 * 3 + i1] - y[i1])".

    shapes: of each tensor that is loaded. They lie in memory one element after the other, the last
    dimension fastest, so x of shape [2, 3] has x[1][2] at x[1 * 3 + 2]. Signs: + - and *.
    \"\"\"
    ...
""",
            hints=(
                "The function calls itself for the values in a value; another one does the same "
                "for indices. Put everything that has a sign into parentheses.",
                "The place in memory: begin with 0; for each dimension, multiply by its size and "
                "add its index.",
                'place = "0"; for size, index in zip(shapes[name], indices): place = f"({place} * '
                '{size} + {text of the index})".',
            ),
            calls=loop_values.text_calls,
            check=loop_values.check_texts,
        ),
    ),
)
