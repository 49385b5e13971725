"""The built-in commands of the command line, and the packages of this project that bring more."""

SECTIONS = {
    "agents": {
        "demo": "connectagent.cli.demo",
        "run": "connectagent.cli.run",
        "map": "connectagent.cli.map",
        "eval": "connectagent.cli.eval",
        "chat": "connectagent.cli.chat.command",
        "resume": "connectagent.cli.resume",
    },
    "records": {
        "log": "connectagent.cli.log",
        "view": "connectagent.cli.view.command",
        "blame": "connectagent.cli.blame",
        "replay": "connectagent.cli.replay",
        "report": "connectagent.cli.report",
        "bisect": "connectagent.cli.bisect",
        "compare": "connectagent.cli.compare",
        "bill": "connectagent.cli.bill",
    },
    "plugins": {
        "hooks": "connectagent.cli.hooks",
        "plugins": "connectagent.cli.plugins",
        "allow": "connectagent.cli.allow",
    },
}
"""The sections of `--help`: each built-in command with the module of the click command of the same name."""

COMMANDS = {name: module for commands in SECTIONS.values() for name, module in commands.items()}

GROUPS = ("log", "plugins")
"""Those that have commands of their own."""

ELSEWHERE = {
    "bill": "connectagent-lab",
    "bisect": "connectagent-lab",
    "blame": "connectagent-lab",
    "chat": "connectagent-chat",
    "checkpoint": "connectagent-checkpoint",
    "compare": "connectagent-lab",
    "eval": "connectagent-lab",
    "mcp": "connectagent-mcp",
    "plugins test": "pytest-connectagent",
    "policy": "connectagent-policy",
    "report": "connectagent-lab",
    "serve": "connectagent-serve",
    "view": "connectagent-view",
}
"""The commands of this project's packages: which one to install where a command is missing."""
