"""One turn: the model call, the tool round, and the boundary at which code of others runs."""
