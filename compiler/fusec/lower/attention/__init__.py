"""Attention whose scores and masks the user wrote: ``flex_attention`` and its gradients."""
