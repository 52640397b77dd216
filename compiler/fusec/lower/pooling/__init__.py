"""Windows that slide over images: pooling, its gradients, convolutions channel by channel."""
