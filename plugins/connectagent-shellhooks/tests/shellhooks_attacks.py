"""Attacks on guards that are hooks: what they are given, and what came of it. `through`: the call runs all the same."""

from __future__ import annotations

from typing import Any

DENY = '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}}'
DEEP = '{"a":' * 900 + "1" + "}" * 900

# A hook for every tool says this with this exit code; whether the call is refused, with `fail_closed=False`.
SAYINGS: list[tuple[str, str, int, bool]] = [
    ("exit code 2", "", 2, True),
    ("exit code 2 over a JSON that allows", '{"decision": "approve"}', 2, True),
    ("deny", DENY, 0, True),
    ("deny behind white space", f"\n\t  {DENY}\n", 0, True),
    ("deny without the event's name", '{"hookSpecificOutput": {"permissionDecision": "deny"}}', 0, True),
    ("deny for another event", DENY.replace("PreToolUse", "PostToolUse"), 0, True),
    ("deny with a reason that is a number", '{"hookSpecificOutput": {"permissionDecision": "deny",'
     '"permissionDecisionReason": 7}}', 0, True),
    ("deny with a reason that is an object", '{"hookSpecificOutput": {"permissionDecision": "deny",'
     '"permissionDecisionReason": {"a": [1]}}}', 0, True),
    ("deny with escaped letters", DENY.replace("deny", "\\u0064eny"), 0, True),
    ("deny with a key in escaped letters", DENY.replace("permissionDecision", "permission\\u0044ecision"), 0, True),
    ("deny last of equal keys", '{"hookSpecificOutput": {"permissionDecision": "allow",'
     '"permissionDecision": "deny"}}', 0, True),
    ("deny beside continue", '{"continue": true, "hookSpecificOutput": {"permissionDecision": "deny"}}', 0, True),
    ("deny beside new input", '{"hookSpecificOutput": {"permissionDecision": "deny",'
     '"updatedInput": {"command": "ls"}}}', 0, True),
    ("deny beside unknown keys", DENY[:-1] + ', "more": {"x": [null, 1e400]}}', 0, True),
    ("deny beside a deep object", DENY[:-1] + f', "more": {DEEP}}}', 0, True),
    ("deny beside a megabyte less", DENY[:-1] + ', "more": "' + "x" * 900_000 + '"}', 0, True),
    ("deny with Unicode", DENY[:-1] + ', "reason": "größe \\ud83d\\ude00 設定"}', 0, True),
    ("deny with exit code 1", DENY, 1, True),
    ("deny with exit code 2 and a reason", DENY[:-2] + ', "permissionDecisionReason": "no"}}', 2, True),
    ("the old word block", '{"decision": "block", "reason": "no"}', 0, True),
    ("block without a reason", '{"decision": "block"}', 0, True),
    ("block with a reason that is null", '{"decision": "block", "reason": null}', 0, True),
    ("block beside allow", '{"decision": "block", "hookSpecificOutput": {"permissionDecision": "allow"}}', 0, True),
    ("the word deny where block is expected", '{"decision": "deny"}', 0, True),
    ("stop the agent", '{"continue": false, "stopReason": "enough"}', 0, True),
    ("stop the agent over an approval", '{"continue": false, "decision": "approve"}', 0, True),
    ("deny in letters that look alike", DENY.replace('"deny"', '"d\u0435ny"'), 0, False),
    ("deny in wide letters", DENY.replace('"deny"', '"ｄｅｎｙ"'), 0, False),
    ("deny with an invisible letter", DENY.replace('"deny"', '"deny\u200b"'), 0, False),
    ("deny in a list", DENY.replace('"deny"', '["deny"]'), 0, False),
    ("deny under a key with a blank", DENY.replace('"permissionDecision"', '"permissionDecision "'), 0, False),
    ("deny one level deeper", '{"hookSpecificOutput": ' + DENY + "}", 0, False),
    ("deny in a list of outputs", '{"hookSpecificOutput": [' + DENY + "]}", 0, False),
    ("new input that is a text", '{"hookSpecificOutput": {"updatedInput": "rm"}}', 0, False),
    ("not a number, as Python reads it", DENY[:-1] + ', "x": NaN}', 0, True),
    # What follows is no decision, as in Claude Code: the call runs.
    ("an approval", '{"decision": "approve"}', 0, False),
    ("no output", "", 0, False),
    ("plain words", "deny", 0, False),
    ("deny in capitals", DENY.replace('"deny"', '"DENY"'), 0, False),
    ("deny with letters of another alphabet", DENY.replace("deny", "dеny"), 0, False),
    ("deny with a blank", DENY.replace('"deny"', '"deny "'), 0, False),
    ("deny at the wrong place", '{"permissionDecision": "deny"}', 0, False),
    ("deny in a list", f"[{DENY}]", 0, False),
    ("deny as a text", '{"hookSpecificOutput": "deny"}', 0, False),
    ("deny as a list", '{"hookSpecificOutput": {"permissionDecision": ["deny"]}}', 0, False),
    ("deny first of equal keys", '{"hookSpecificOutput": {"permissionDecision": "deny",'
     '"permissionDecision": "allow"}}', 0, False),
    ("block first of equal keys", '{"decision": "block", "reason": "no", "decision": "approve"}', 0, False),
    ("deny behind a line of text", f"checking ...\n{DENY}", 0, False),
    ("deny before a line of text", f"{DENY}\ndone", 0, False),
    ("deny cut off", DENY[:-2], 0, False),
    ("deny behind a byte order mark", f"\ufeff{DENY}", 0, False),
    ("deny in single quotes", DENY.replace('"', "'"), 0, False),
    ("deny with a comment", f"// no\n{DENY}", 0, False),
    ("deny over a megabyte", DENY[:-1] + ', "more": "' + "x" * 1_100_000 + '"}', 0, False),
    ("deny in an object that is too deep", DENY[:-1] + ', "more": ' + '{"a":' * 100_000, 0, False),
    ("exit code 1", "", 1, False),
    ("exit code 127", "", 127, False),
    ("continue as a text", '{"continue": "false"}', 0, False),
    ("continue as null", '{"continue": null}', 0, False),
]  # fmt: skip

# Of these, what only a hook that fails says: the call is refused, but not with `fail_closed=False`, as in Claude Code.
FAILED = {
    "deny first of equal keys",
    "block first of equal keys",
    "deny before a line of text",
    "deny cut off",
    "deny behind a byte order mark",
    "deny in single quotes",
    "deny over a megabyte",
    "deny in an object that is too deep",
    "exit code 1",
    "exit code 127",
}

# Hooks that misbehave; whether the call is refused, and whether it is with `fail_closed`.
HABITS: list[tuple[str, str, bool, bool]] = [
    ("hangs", "sleep 30", False, True),
    ("hangs and cannot be asked to end", "trap '' TERM INT HUP; while :; do sleep 1; done", False, True),
    ("hangs in a child process", "(sleep 30); exit 2", False, True),
    ("closes its output and hangs", "exec >&- 2>&-; sleep 30", False, True),
    ("says deny and hangs", f"echo '{DENY}'; sleep 30", False, True),
    ("leaves a process that holds its output", "sleep 30 & exit 2", True, True),
    ("does not read its input", "exec <&-; exit 2", True, True),
    ("kills itself", "kill -9 $$", False, True),
    ("is not there", "/no/such/hook", False, True),
    ("is no program", "/etc/passwd", False, True),
    ("cannot be parsed", "if then (", True, True),  # bash ends with 2
    ("writes megabytes before it refuses", "head -c 3000000 /dev/zero; exit 2", True, True),
    ("writes megabytes of errors", "head -c 3000000 /dev/zero >&2; exit 2", True, True),
    ("writes bytes that are no text", "printf '\\xff\\xfe\\x00' >&2; exit 2", True, True),
    ("writes without end", "yes", False, True),
]

# Arguments that must reach a hook as they are.
ARGUMENTS: list[dict[str, Any]] = [
    {"command": "rm -rf / # 'quoted' \"twice\" $(id) `id` \\"},
    {"command": "line\nline\r\nline\u2028line\u0085line\ttab"},
    {"command": "\0\x01\x1b[31m\x7f"},
    {"command": "größe 設定 🙂 ﷽ \u202eevil\u202c \u200bzero"},
    {"command": "\ud800 half of a pair"},
    {"command": "x" * 300_000},
    {"command": "'; exit 0; '"},
    {"command": "$CLAUDE_PROJECT_DIR ${HOME} %PATH% {folder}"},
    {"command": "-n"},
    {"command": ""},
    {"command": "</script>{}\u0000"},
    {"command": "a", "nested": {"list": [1, 2.5, None, True, {"command": "rm"}]}},
    {"command": "a", "hook_event_name": "Stop", "session_id": "other", "tool_name": "Read"},
    {"command": "a", "größe": 1, "": 2, "a b": 3, "__proto__": 4},
    {"command": "1e400", "number": 10**30},
]

# Names of tools, and whether a hook for `Bash` sees the call.
MATCHERS: list[tuple[str, str, bool]] = [
    ("Bash", "Bash", True),
    ("Bash", "bash", False),
    ("Bash", "BashOutput", False),
    ("Bash", "mcp__x__Bash", False),
    ("Bash|Edit", "Edit", True),
    ("Bash, Edit", "Edit", True),
    ("Bash | Edit", "Bash", True),
    ("^Bash$", "Bash", True),
    ("^Bash$", "BashOutput", False),
    ("Ba.h", "BashOutput", True),
    ("mcp__memory", "mcp__memory__create", False),
    ("mcp__memory__.*", "mcp__memory__create", True),
    ("*", "anything", True),
    ("", "anything", True),
    (".*", "anything", True),
    ("Notebook.*", "NotebookEdit", True),
]

# Rules in `if`, commands, and whether the hook runs.
RULES: list[tuple[str, str, bool]] = [
    ("Bash", "ls", True),
    ("Bash(rm *)", "rm -rf x", True),
    ("Bash(rm:*)", "rm -rf x", True),
    ("Bash(rm *)", "ls; rm -rf x", True),
    ("Bash(rm *)", "ls && rm -rf x", True),
    ("Bash(rm *)", "ls || rm -rf x", True),
    ("Bash(rm *)", "ls | rm -rf x", True),
    ("Bash(rm *)", "ls & rm -rf x", True),
    ("Bash(rm *)", "ls\nrm -rf x", True),
    ("Bash(rm *)", "echo $(rm -rf x)", True),
    ("Bash(rm *)", "echo `rm -rf x`", True),
    ("Bash(rm *)", "cat <(rm -rf x)", True),
    ("Bash(rm *)", "eval rm -rf x", True),
    ("Bash(rm *)", "X=rm; ${X} -rf x", True),
    ("Bash(rm *", "ls", True),
    ("Bash(rm *)", "ls -l", False),
    ("Edit(*)", "rm -rf x", False),
    # A rule is no guard: these are other names of the same thing.
    ("Bash(rm *)", "/bin/rm -rf x", False),
    ("Bash(rm *)", "r\\m -rf x", False),
    ("Bash(rm *)", "'rm' -rf x", False),
    ("Bash(rm *)", "rm\t-rf x", False),
    ("Bash(rm *)", "env rm -rf x", False),
    ("Bash(rm *)", "X=rm; $X -rf x", False),
    ("Bash(rm *)", "{ rm -rf x; }", False),
    ("Bash(rm *)", "(rm -rf x)", False),
    ("Bash(rm *)", "rm\u00a0-rf x", False),
    ("Bash(rm *)", "ｒm -rf x", False),
    ("Bash(rm *)", "! rm -rf x", False),
    ("Bash(rm *)", "if true; then rm -rf x; fi", False),
]
