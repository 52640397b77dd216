"""Lab 3, a mini TorchDynamo: frames, capture, guards, graph breaks, continuations."""

from __future__ import annotations

from fuselab.judge.task import PythonTask
from fuselab.labs.content import stack_code
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

_CODE = """
# Code is a list of [op, argument]:
#   load NAME, const VALUE   push a variable's value, or a constant
#   store NAME, pop          take the top off the stack; store keeps it in a variable
#   binary SIGN              take two off, push left SIGN right: + - * < > (right was on top)
#   call NAME                take one off, push NAME(it); functions are relu, sin, abs and show
#   jump PLACE               go on at that position in the code
#   jump_if_false PLACE      take one off; go there if it is false (or 0), else to what follows
#   return                   take one off; that is the result
"""
_CAPTURED = ("graph", "guards", "result")
_STOPPED = ("graph", "guards", "stop", "stack", "stored")

LAB = Lab(
    3,
    "mini_dynamo",
    "A mini TorchDynamo: bytecode, guards, breaks, continuations",
    45,
    (
        PythonTask(
            "lab03.frame",
            "evaluating a frame",
            "run",
            points=2,
            start=_CODE
            + """
def run(code, given):
    \"\"\"Return (result, shown): what code returns for the given variables, and what it shows.

    Tensors are plain numbers here. show(v) returns v, and puts it at the end of the list `shown`.
    relu(v) is max(v, 0.0).
    \"\"\"
    ...
""",
            hints=(
                "Keep a dictionary of variables, a list for the stack and a position. A loop takes "
                "the instruction at the position, moves on by one, and does it.",
                "One `if` for each op. For binary, the first value that you take off is the right "
                "side. A jump sets the position.",
                "elif op == 'jump_if_false': if not stack.pop(): position = argument. And for "
                "return: return stack.pop(), shown.",
            ),
            imports=("operator",),
            calls=stack_code.run_calls,
            check=lambda calls, results: first_wrong("run", calls, results, stack_code.run),
        ),
        PythonTask(
            "lab03.capture",
            "capturing a graph, with its guards",
            "capture",
            points=3,
            start="""
def capture(code, given):
    \"\"\"Return {"graph": ..., "guards": ..., "result": ...} of code that does not show anything.

    given: of each input its name to "tensor", or to its value if it is a number. A tensor input is
    written as its name. What is done to tensors becomes a node, [name, op, arguments], with names
    "%0", "%1", ...: ["%0", "*", ["x", 3]]. What is done to numbers alone is done at once. Jumps
    depend on numbers only.

    Guards are [name, given[name]], in the order in which inputs are read first, each once.
    What was stored by the code itself needs no guard.
    \"\"\"
    ...
""",
            hints=(
                "It is `run` with other values: a tensor is a text, its name. Numbers stay "
                "numbers, so jumps and loops just happen.",
                "For binary and call, look whether one of the arguments is a text. If so, add a "
                "node to the graph and push its name; if not, compute.",
                "load: if the name was stored by the code, push what was stored. Otherwise add the "
                'guard if it is not there, and push the name if given[name] is "tensor", else '
                "given[name].",
            ),
            imports=("operator",),
            calls=stack_code.capture_calls,
            check=lambda calls, results: stack_code.check_captured(calls, results, _CAPTURED),
        ),
        PythonTask(
            "lab03.guards",
            "which code serves a call",
            "find",
            start="""
def find(entries, facts):
    \"\"\"Return the position of the first entry whose guards all hold, -1 if there is none.

    An entry is its guards: a list of [name, value]. Code made for 1 does not serve True or 1.0,
    for which Python computes something else.
    \"\"\"
    ...
""",
            hints=(
                "An entry serves a call if facts[name] is the value, for each of its guards. One "
                "without guards serves every call.",
                "1 == True == 1.0 in Python. What else has to be the same?",
                "all(type(facts[n]) is type(v) and facts[n] == v for n, v in guards)",
            ),
            calls=stack_code.find_calls,
            check=lambda calls, results: first_wrong("find", calls, results, stack_code.find),
        ),
        PythonTask(
            "lab03.breaks",
            "graph breaks",
            "capture",
            points=3,
            start="""
def capture(code, given):
    \"\"\"Return {"graph", "guards", "stop", "stack", "stored"}, as far as code can be captured.

    As in part 2, but capture stops in front of a call of show, and of a jump_if_false that depends
    on a tensor. "stop" is the position of that instruction, "stack" what is on the stack there,
    and "stored" a dictionary of what the code has stored so far. If nothing stops it, "stop" is
    None and "stack" is [result].
    \"\"\"
    ...
""",
            hints=(
                "Copy your `capture`. Before an instruction is done, look whether it is one of the "
                "two that stop it.",
                "A jump depends on a tensor if the top of the stack is a text. The top stays on "
                "the stack: whoever goes on will need it.",
                'Return {..., "stop": position, "stack": stack, "stored": stored}, with the '
                "position of the instruction itself, not of the next one.",
            ),
            imports=("operator",),
            calls=stack_code.break_calls,
            check=lambda calls, results: stack_code.check_captured(calls, results, _STOPPED),
        ),
        PythonTask(
            "lab03.continuation",
            "the continuation",
            "continuation",
            points=2,
            start="""
def continuation(code, position, depth):
    \"\"\"Return code that does what is left of code from a position on.

    It begins with an empty stack; the `depth` values that belong there are in variables of their
    own: stack0 (the lowest), stack1, ... Other variables are as they were. Jumps backwards may go
    to places before the position.
    \"\"\"
    return code[position:]
""",
            hints=(
                "A loop may jump back, so all of the code has to be there still. Put something in "
                "front of it.",
                "In front: load stack0, load stack1, ..., then a jump to the position. How far "
                "has every instruction moved?",
                "By depth + 1. So add that to the argument of every jump and jump_if_false, and to "
                "the position in your own jump.",
            ),
            calls=stack_code.continuation_calls,
            check=stack_code.check_continuations,
        ),
    ),
)
