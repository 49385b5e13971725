"""Replay: the recorded answers of model and tools through today's handlers, offline."""
