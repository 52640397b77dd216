"""What targets share: signatures, patterns, analyses of bodies, the host program, the verifier.

Where only half precision sees a value (``common/relaxed_maths.py``, which all code generators ask),
exp, sigmoid and erf have shorter forms, each held to the error that it declares; erf one more
where only multiples of it are stored, as bfloat16.
"""
