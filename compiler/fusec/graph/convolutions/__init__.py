"""Passes about convolutions: memory format, windows of one pixel, depthwise.

Convolutions run in the libraries that ATen calls. ``channels_last.py`` has convolutions and their
gradients with the channels innermost (on a GPU in half precision), and ``relayout.py`` has what
lies between them follow. Convolutions of single pixels are products then (``one_pixel.py``).
Convolutions of each channel by itself are kernels of our own on a GPU
(``lower/pooling/convolution.py``); ``depthwise.py`` has their gradients computed one by one.
"""
