"""torch's operator database through fusec and TorchInductor: ``make ops``."""
