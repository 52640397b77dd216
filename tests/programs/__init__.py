"""Random PyTorch programs through fusec, beside eager and float64; ``python -m programs``."""
