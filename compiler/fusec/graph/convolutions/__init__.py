"""Passes about convolutions: memory format, windows of one pixel, depthwise."""
