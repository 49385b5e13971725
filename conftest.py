pytest_plugins = ["connectagent.testing"]
