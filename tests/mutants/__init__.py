"""Mistakes made on purpose in the compiler, and which test finds each: ``make mutants``."""
