"""Drives a plugin along every path of a turn and holds it against the rules."""
