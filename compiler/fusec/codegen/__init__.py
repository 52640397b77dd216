"""What targets share: signatures, patterns, analyses of bodies, the host program, the verifier.

Where only half precision sees a value (``common/relaxed_maths.py``, which all code generators ask),
exp, sigmoid and erf have shorter forms, each held to the error that it declares; erf one more
where only multiples of it are stored, as bfloat16.

Bytes moved are counted in ``common/traffic.py``, for all targets: each element that the loops can
reach, once; of a table that is gathered from, one element a point at most.
"""
