"""Lab 6, fusion: legality, score, and a mini fuser that writes expressions."""

from __future__ import annotations

import functools

from fuselab.judge.task import PythonTask
from fuselab.labs.content import fusion
from fuselab.labs.content.answers import first_wrong as first_wrong_of
from fuselab.labs.lab import Lab

GRAPH_NOTE = """
# A graph is a list of nodes in an order in which they can run. A node is a dictionary:
#   {"name": "t0", "op": "mul", "inputs": ["x", "y"], "size": 1000, "output": False}
# "size" is how many float32 numbers the node yields. "op" is pointwise, but for "matmul",
# which is a library call and shares no kernel. Inputs that no node yields are the graph's.
"""

first_wrong = functools.partial(first_wrong_of, text_of=fusion.call_of)

LAB = Lab(
    6,
    "fusion",
    "Fusion: what may share a kernel, and what should",
    45,
    (
        PythonTask(
            "lab06.readers",
            "who reads what",
            "readers",
            start=GRAPH_NOTE
            + """
def readers(graph):
    \"\"\"Return a dictionary: each node's name to the names of the nodes that read it.\"\"\"
    ...
""",
            hints=(
                "Begin with an empty list for every node, also for those that nobody reads.",
                "Go through the nodes in order and through each one's inputs.",
                'found = {n["name"]: [] for n in graph}; then for each input that is in `found`, '
                "append the node's name, once even if it reads the input twice.",
            ),
            calls=fusion.graphs,
            shown=fusion.call_of,
            check=lambda calls, results: first_wrong("readers", calls, results, fusion.readers),
        ),
        PythonTask(
            "lab06.circle",
            "what may not be fused",
            "goes_round",
            points=2,
            start="""
def goes_round(graph, group):
    \"\"\"Return whether some path leaves the group and comes back into it.\"\"\"
    ...
""",
            hints=(
                "A kernel runs as one. If t1 of the group is read by t2 outside of it, and t2 is "
                "read by t3 of the group, the kernel would have to run before and after t2.",
                "Walk through the graph in order and mark every node outside of the group that "
                "depends on the group, directly or through another marked node.",
                "If a node of the group reads a marked node, the answer is True; at the end it is "
                "False. One pass is enough since the graph is in order.",
            ),
            calls=fusion.groups,
            shown=fusion.call_of,
            check=lambda calls, results: first_wrong(
                "goes_round", calls, results, fusion.goes_round
            ),
        ),
        PythonTask(
            "lab06.saved",
            "the score",
            "bytes_saved",
            points=2,
            start="""
def bytes_saved(graph, a, b):
    \"\"\"Return how many bytes need not be moved if the nodes named a and b share a kernel.

    a stands before b. Two things count: what b reads of a, and what both of them read. A graph's
    own input is as large as the node that reads it.
    \"\"\"
    ...
""",
            hints=(
                "If b reads a, its value is in a register: one read of a's size is saved. When is "
                "the write of a saved as well?",
                "a must be written if a third node reads it, or if it is an output of the graph. "
                "And an input that both read is read once in place of twice.",
                "4 * size(a) for the read, 4 * size(a) more if b is the only reader and a is no "
                "output; plus 4 * size of every input that both have. A graph's own input has the "
                "size of the node that reads it.",
            ),
            calls=fusion.pairs,
            shown=fusion.call_of,
            check=lambda calls, results: first_wrong(
                "bytes_saved", calls, results, fusion.bytes_saved
            ),
        ),
        PythonTask(
            "lab06.fuse",
            "a mini fuser",
            "fuse",
            points=4,
            start="""
def fuse(graph):
    \"\"\"Return the kernels: a list of groups, each a list of names; every node is in one.

    A matmul stays alone, no group goes round, and the bytes moved should be few.
    \"\"\"
    return [[node["name"]] for node in graph]
""",
            hints=(
                "Begin with each node in a group of its own, and put two groups together as long "
                "as there is a pair that is legal and saves something.",
                "Legal: neither has a matmul, both have the same size, and the union does not go "
                "round. What saves something: one reads the other, or both read the same.",
                "Take the best pair by the bytes that are moved before and after: reads of what "
                "the group does not yield itself, once each, and writes of what others read or "
                "what is an output. Repeat until no pair is better than nothing.",
            ),
            calls=fusion.large_graphs,
            shown=fusion.call_of,
            check=fusion.check_plans,
        ),
        PythonTask(
            "lab06.write",
            "the text of a kernel",
            "expression",
            points=3,
            start="""
def expression(graph, name):
    \"\"\"Return the node's value as one expression of the graph's own inputs.

    Operators: add, sub, mul and div are + - * /, exp and relu are functions: "relu(x * y + 1.0)".
    \"\"\"
    ...
""",
            hints=(
                "The value of an input of the graph is its name. The value of a node is its "
                "operator around the values of its inputs: the function calls itself.",
                "Make a dictionary of the nodes by name. If the name is not in it, return the "
                "name. Mind the precedence: put what you insert into parentheses.",
                'signs = {"add": "+", ...}; a, b = inputs; return f"({a} {sign} {b})"; for exp and '
                'relu return f"{op}({a})".',
            ),
            calls=fusion.texts,
            shown=fusion.call_of,
            check=fusion.check_texts,
        ),
    ),
)
