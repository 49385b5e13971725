"""Masks secrets before anything is written or shown."""

from connectagent.output.masking.masks import MAX_DEPTH, MOST_GIVEN, Mask, add_secret, check, current, mask, refresh

__all__ = ["MAX_DEPTH", "MOST_GIVEN", "Mask", "add_secret", "check", "current", "mask", "refresh"]
