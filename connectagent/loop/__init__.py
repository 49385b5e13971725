"""One turn: the model call, the tool round, and the boundary at which handlers and tools run."""
