"""Lab 4, a mini AOTAutograd: decompositions, functionalization, joint graphs, what to save."""

from __future__ import annotations

from fuselab.judge.task import PythonTask
from fuselab.labs.content import joint_graphs
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

_GRAPH = """
# A graph is a list of nodes in an order in which they can run: [name, operator, arguments].
#   [["t0", "mul", ["x", 2]], ["t1", "exp", ["t0"]]]
# Arguments are numbers, or names: of the inputs x, y, z or of nodes before.
# Primitive operators: add, mul, neg, exp, log, reciprocal.
"""

LAB = Lab(
    4,
    "mini_aot_autograd",
    "A mini AOTAutograd: joint graphs, and what to save",
    45,
    (
        PythonTask(
            "lab04.decompose",
            "decompositions",
            "decompose",
            points=2,
            start=_GRAPH
            + """
def decompose(graph):
    \"\"\"Return the graph with primitive operators only.

    Besides those it has sub, div, sigmoid, silu (x * sigmoid(x)) and softplus (log(1 + exp(x))).
    A node's name stays the name of its value; what is new in between gets new names.
    \"\"\"
    return graph
""",
            hints=(
                "Write each of the five with primitive operators on paper: a - b is a + (-b).",
                "For each node, put the new nodes of its recipe in front, and give the last one "
                "the node's own name. A helper put(name, op, *arguments) that returns the name "
                "makes it short.",
                "sigmoid(a) is reciprocal(add(1, exp(neg(a)))); silu multiplies that by a; div is "
                "mul(a, reciprocal(b)). New names: f'{name}.1', f'{name}.2', ...",
            ),
            calls=joint_graphs.composed_calls,
            check=joint_graphs.check_decomposed,
        ),
        PythonTask(
            "lab04.functionalize",
            "functionalization",
            "functionalize",
            points=3,
            start="""
def functionalize(graph):
    \"\"\"Return {"graph": ..., "result": ..., "updates": ...} with nothing changed in place.

    Besides primitive operators the graph has
      [name, "add_", [a, b]], and mul_: changes a; name is a new name of the same memory as a
      [name, "view", [a]]: a new name of the same memory as a
    "graph" has add and mul in their place, and no views. "result" is the name of what the last
    node's memory holds in the end. "updates": for each input whose memory is written, the name of
    what it holds in the end.
    \"\"\"
    ...
""",
            hints=(
                "Two things that are easily mixed up: which memory a name stands for, and which "
                "value lies in that memory now.",
                "Keep two dictionaries: memory[name] (x, y and z have their own, a view that of "
                "what it views), and current[memory], the name of the value that lies there.",
                "Replace each argument a by current[memory[a]]. After add_, current[memory[a]] is "
                "the new node. A node that is no view and not in place has memory of its own. At "
                "the end, updates are the written ones of x, y and z.",
            ),
            calls=joint_graphs.memory_calls,
            check=joint_graphs.check_functional,
        ),
        PythonTask(
            "lab04.joint",
            "the joint graph",
            "joint",
            points=4,
            start="""
def joint(graph):
    \"\"\"Return {"graph": ..., "gradients": {"x": ..., "y": ..., "z": ...}}.

    The graph has primitive operators only; its last node is the result. The joint graph begins
    with the same nodes and goes on with those that compute the result's gradients. A gradient is
    a name, or a number: 0 for an input that the result does not depend on.
    \"\"\"
    ...
""",
            hints=(
                "Go through the graph backwards. A node whose gradient is known hands a part of "
                "it on to each of its arguments. It begins with 1 for the result.",
                "What reaches a name from several sides is added up. Numbers take no gradient, "
                "and nodes that nothing reached are left out.",
                "With the gradient g of a node t: add g, g; mul g * b, g * a; neg -g; exp g * t; "
                "log g * reciprocal(a); reciprocal -(g * (t * t)).",
            ),
            calls=joint_graphs.primitive_calls,
            check=joint_graphs.check_gradients,
        ),
        PythonTask(
            "lab04.saved",
            "what backward reads",
            "saved",
            start="""
def saved(graph, forward):
    \"\"\"Return, sorted, the names that backward nodes read and that are not backward nodes.

    graph: a joint graph. forward: how many of its nodes are the forward part. Inputs count too.
    \"\"\"
    ...
""",
            hints=(
                "Backward nodes are graph[forward:]. Which names do they read?",
                "Of these names, leave out numbers and those of backward nodes.",
                "sorted(set of the arguments that are texts, minus the names of graph[forward:]).",
            ),
            calls=joint_graphs.joint_calls,
            check=lambda calls, results: first_wrong(
                "saved", calls, results, joint_graphs.read_later
            ),
        ),
        PythonTask(
            "lab04.choose",
            "save it, or compute it again",
            "choose",
            points=4,
            start="""
def choose(graph, forward, sizes):
    \"\"\"Return the names to save, inputs and forward nodes, with the least total size.

    The backward part can have again what is saved, and every add, mul, neg or reciprocal whose
    arguments it can have (numbers are always there). exp and log are not computed twice. It has
    to have all that it reads. sizes: of each input and forward node.
    \"\"\"
    return list(sizes)
""",
            hints=(
                "First the other way round: given a set of saved names, can backward get all that "
                "it reads? One pass over the forward nodes says what can be had.",
                "There are at most eleven names, so 2048 sets: try them all, and keep the one of "
                "least size that is enough.",
                "itertools.product((False, True), repeat=len(sizes)) yields the sets. (Compilers "
                "cannot try them all: they ask for a minimum cut, which is the same thing.)",
            ),
            calls=joint_graphs.cut_calls,
            check=joint_graphs.check_cuts,
        ),
    ),
)
