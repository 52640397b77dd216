"""Passes about products of matrices: precision, alignment, bias, library."""
