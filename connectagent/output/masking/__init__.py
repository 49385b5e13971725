"""Secrets are masked before anything is written or shown: exact values, forms of keys, values by their names."""

from connectagent.output.masking.mask import MAX_DEPTH, MOST_GIVEN, Mask, add_secret, check, current, refresh

__all__ = ["MAX_DEPTH", "MOST_GIVEN", "Mask", "add_secret", "check", "current", "refresh"]
