"""Whole models beside eager and TorchInductor: ``make models``."""
