"""Tensors' memory: whether it can be read, how it is copied, what it holds before it is written.

What kernels can read are plain tensors whose memory is there (``readable.py``). A graph that is
given another one (a fake tensor, a lazily negated view, a zero tensor, what a mode or a transform
watches) runs by ATen's operators, as it does in eager; freed memory is an error. AOTAutograd takes
wrapper subclasses apart before.
"""
