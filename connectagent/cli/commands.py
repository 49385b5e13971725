"""The built-in commands of the command line."""

COMMANDS = {
    "demo": "connectagent.cli.demo",
    "run": "connectagent.cli.run",
    "map": "connectagent.cli.map",
    "eval": "connectagent.cli.eval",
    "hooks": "connectagent.cli.hooks",
    "log": "connectagent.cli.log",
    "blame": "connectagent.cli.blame",
    "resume": "connectagent.cli.resume",
    "replay": "connectagent.cli.replay",
    "report": "connectagent.cli.report",
    "bisect": "connectagent.cli.bisect",
    "compare": "connectagent.cli.compare",
    "bill": "connectagent.cli.bill",
    "plugins": "connectagent.cli.plugins",
    "allow": "connectagent.cli.allow",
}
"""The built-in commands, each with the module of the click command of the same name."""

GROUPS = ("log", "plugins")
"""Those that have commands of their own."""
