"""What the loop costs beside the SDK's plain loop, measured in one run against a fast server on loopback.

    python benchmarks/loop.py [rounds] [turns]

Prints the ratios that the project holds itself to: 50 rounds of 8 calls (at most a tenth of the plain
loop), the 200th turn of a conversation (at most a twentieth), a hook call without handlers, and the
making of an Agent.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

SERVER = r'''
import json, socket, sys
ROUNDS, CALLS = int(sys.argv[1]), int(sys.argv[2])
def body(n):
    done = n % (ROUNDS + 1) == ROUNDS
    message = {"role": "assistant", "content": "done" if done else None}
    if not done:
        message["tool_calls"] = [{"id": f"call_{n}_{k}", "type": "function", "function":
            {"name": "lookup", "arguments": json.dumps({"key": f"item {n} {k}", "count": k})}} for k in range(CALLS)]
    data = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "gpt-4o-mini", "choices":
        [{"index": 0, "message": message, "finish_reason": "stop" if done else "tool_calls"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data
listener = socket.create_server(("127.0.0.1", 0)); print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept(); connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    n, data = 0, b""
    while True:
        while b"\r\n\r\n" not in data:
            chunk = connection.recv(1 << 20)
            if not chunk: break
            data += chunk
        else:
            head, _, rest = data.partition(b"\r\n\r\n")
            length = int(next(l for l in head.lower().split(b"\r\n") if l.startswith(b"content-length")).split(b":")[1])
            parts, have = [rest], len(rest)
            while have < length:
                chunk = connection.recv(1 << 20); parts.append(chunk); have += len(chunk)
            data = b""; connection.sendall(body(n)); n += 1
            continue
        break
'''


WARM_UP, TRIALS = 1, 5


def lookup(key: str, count: int) -> str:
    """Look a thing up."""
    return f"the value of {key} is {count}"


def served(rounds: int, calls: int) -> tuple[subprocess.Popen[str], str]:
    """A server process that answers with tool rounds; its base URL."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(rounds), str(calls)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"


def plain_turn(client: Any, messages: list[Any], tools: list[Any], prompt: str) -> None:
    """One turn as the SDK's documentation writes it."""
    messages.append({"role": "user", "content": prompt})
    while True:
        answer = client.chat.completions.create(model="gpt-4o-mini", messages=messages, tools=tools)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            result = lookup(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def compare(rounds: int, calls: int, turns: int) -> None:
    """Time the same turns by both loops in one process, turn by turn."""
    import openai

    from connectagent import Agent

    one, url_one = served(rounds, calls)
    two, url_two = served(rounds, calls)
    try:
        client = openai.OpenAI(api_key="x", base_url=url_one)
        agent = Agent("bench", [lookup], model="openai/gpt-4o-mini", api_key="x", base_url=url_two, quiet=True,
                      max_iterations=rounds + 1)  # fmt: skip
        tools, messages = agent.tools.schemas(), []
        plain, ours, sizes = [], [], []
        for turn in range(turns):
            if turns == WARM_UP + TRIALS:  # each a conversation of its own; the first ones warm up
                agent.reset_conversation()
                messages.clear()
            started = time.perf_counter()
            plain_turn(client, messages, tools, f"turn {turn}")
            middle = time.perf_counter()
            agent.input(f"turn {turn}")
            ours.append(time.perf_counter() - middle)
            plain.append(middle - started)
            sizes.append(record_size())
        last = slice(-TRIALS, None)
        a, b = statistics.median(ours[last]), statistics.median(plain[last])
        when = f"turn {turns}" if turns > 10 else "a new conversation"
        print(f"{rounds} rounds of {calls} calls, {when}: Agent {a * 1000:8.2f} ms, SDK {b * 1000:8.2f} ms, "
              f"ratio 1/{b / a:.1f}")  # fmt: skip
        if turns > 10:
            print(f"  record bytes for a turn: turn 10 {sizes[9] - sizes[8]}, turn {turns} {sizes[-1] - sizes[-2]}")
    finally:
        one.kill(), two.kill()


def record_size() -> int:
    """The size of the newest record."""
    folder = os.path.join(os.environ["CONNECTAGENT_DIR"], "evals")
    files = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns) if os.path.isdir(folder) else []
    return files[-1].stat().st_size if files else 0


def record_time(turns: int = 1000) -> None:
    """The time of a turn with the record on at turn 10 and at the last turn, with a model that costs nothing."""
    from connectagent import Agent, LLMResponse, ToolCall

    class Instant:
        model = "instant"

        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            if messages[-1]["role"] == "user":
                return LLMResponse(None, [ToolCall("c1", "lookup", {"key": "a", "count": 1})])
            return LLMResponse("done")

    agent = Agent("bench", [lookup], llm=Instant(), quiet=True)
    times = []
    for turn in range(turns):
        started = time.perf_counter()
        agent.input(f"turn {turn:04}")
        times.append(time.perf_counter() - started)
    early, late = statistics.median(times[5:25]), statistics.median(times[-20:])
    print(f"a turn without a wire: turn 10 {early * 1e6:.0f} us, turn {turns} {late * 1e6:.0f} us")


def small_costs() -> None:
    """A hook call without handlers, one handler that is watched, and the making of an Agent."""
    from connectagent import Agent, before_llm
    from connectagent.hooks.executor import FiredHook
    from connectagent.session.changes import take_messages

    agent = Agent("bench", [lookup], model="openai/gpt-4o-mini", api_key="x", quiet=True, log=False)
    assert not agent.hooks.handlers("before_llm")
    count = 100_000
    started = time.perf_counter()
    for _ in range(count):
        agent.hooks.call("before_llm", FiredHook({"agent": agent, "request": None}))
    print(f"a hook call without handlers: {(time.perf_counter() - started) / count * 1e6:.2f} us")

    @before_llm
    def watch(agent: Any) -> None:
        pass

    for length in (4, 400):
        agent = Agent("bench", [lookup], model="offline", quiet=True, log=False, on_events=[watch])
        messages = agent._core.conversation.session["messages"]
        messages += [{"role": "user", "content": f"message {n}"} for n in range(length)]
        take_messages(agent._core.conversation.snapshot)
        started = time.perf_counter()
        for _ in range(2000):
            agent.hooks.call("before_llm", FiredHook({"agent": agent, "request": None}))
        print(f"a handler call at {length} messages: {(time.perf_counter() - started) / 2000 * 1e6:.2f} us")
    started = time.perf_counter()
    for _ in range(100):
        Agent("bench", [lookup], model="openai/gpt-4o-mini", api_key="x")
    print(f"making an Agent: {(time.perf_counter() - started) / 100 * 1000:.3f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CONNECTAGENT_DIR"] = folder
        small_costs()
        record_time()
        compare(rounds=50, calls=8, turns=WARM_UP + TRIALS)
        compare(rounds=2, calls=1, turns=200)
