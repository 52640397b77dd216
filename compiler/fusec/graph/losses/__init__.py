"""Losses whose logits are never whole: products and losses of some rows after those of others."""
