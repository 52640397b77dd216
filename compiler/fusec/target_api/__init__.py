"""What a target is, and which there are: the targets themselves are the folders of ``targets``.

A target is one folder of ``targets/`` whose ``target.py`` holds a ``TARGET``; ``registry.py`` finds
it by the folder's name, and nothing outside of that folder compares names. A built kernel is either
a function in a shared library, called with pointers (``LibraryTarget``), or a Python function,
called with tensors (``PythonTarget``); the protocol (``base.py``) says how one is written, built,
loaded, checked in a worker, exported, shown. ``plain`` is the shortest that does all that C++ does:
scalar loops for any compiler, to read and to begin with. ``docs/recipes/add-a-target.md`` adds one.

Options choose the target of a kernel by the device of what it writes (``Options.target_for``);
lowering asks what it can do (``fusec/abilities.py``), never which it is. Where only torch's own
interface tells devices apart, ``fusec/devices.py`` does.
"""
