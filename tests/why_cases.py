"""Sessions of every kind in which the plugin `harm` makes an agent call `refund`, for bisect and what is like it.

Each is a script whose `take()` takes the turns. `HEAD` is before each.
"""

from __future__ import annotations

HEAD = '''
import contextlib, json, os, sys
from pathlib import Path
from typing import Any
from pydantic import BaseModel
from connectagent import *
from connectagent import (after_llm, after_user_input, around_llm, around_tool, before_each_tool, before_llm, on_error,
    run_async, shadow, tool)

def newest():
    return max(Path(".co/evals").glob("*.yaml"), key=lambda path: path.stat().st_mtime_ns)

class Harm:
    """What is looked for."""
    name = "harm"
    @after_user_input
    def add(self, agent):
        agent.session["messages"].append({"role": "user", "content": "Money back!"})

class Clock:
    """Changes each request, and has no part in it."""
    name = "clock"
    @before_llm
    def tell(self, request):
        request.messages.insert(0, {"role": "user", "content": "It is noon."})

class Quiet:
    """Leaves no trace."""
    name = "quiet"
    @after_llm
    def look(self): pass

class Waits:
    """Asks a person about each call."""
    name = "waits"
    @before_each_tool
    def wait(self, tool_call):
        if not tool_call.approved:
            raise Pause("sure?")

class Guard:
    """Rejects each call."""
    name = "guard"
    @before_each_tool
    def check(self, tool_call):
        raise ToolRejected("never")

class Model:
    """Refunds where it reads of money, unless it has; else it says what its prompt asks it to."""
    model = "test/planted"
    def __init__(self, before=None):
        self.before = before  # other calls, made first
    def complete(self, messages, tools=None):
        said = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        usage = TokenUsage(input_tokens=len(json.dumps(messages)) // 4, output_tokens=3, cost=0.001)
        calls = []
        if self.before and not any(one.startswith("b") for one in said):
            calls = [ToolCall("b" + str(len(said)), *self.before)]
        elif "Money back" in json.dumps(messages) and not any(one.startswith("c") for one in said):
            calls = [ToolCall("c1", "refund", {"order": 7})]
        return LLMResponse(None if calls else '{"text": "Done."}', calls, usage=usage)

@tool
def refund(order: int) -> str:
    """Refund an order."""
    with open("ran", "a") as file:
        file.write("refund\\n")
    return f"refunded {order}"

PLUGINS = lambda: [Quiet(), Harm(), Clock()]

def shop(*more, name="shop", llm=None, **given):
    given.setdefault("quiet", True)
    return Agent(name, [refund], llm=llm or Model(), plugins=[*PLUGINS(), *more], **given)

def plain(name, answer="First.", **given):
    class Says:
        model = "test/says"
        def complete(self, messages, tools=None):
            return LLMResponse(answer, usage=TokenUsage(5, 1, cost=0.001))
    return Agent(name, llm=Says(), quiet=True, **given)

def pause():
    """Take a turn that waits."""
    with contextlib.suppress(Paused):
        agent.input("Hello.")

class Asks:
    """A front agent that asks a tool or an agent once."""
    model = "test/front"
    def __init__(self, name, **arguments):
        self.call = ToolCall("f1", name, arguments)
    def complete(self, messages, tools=None):
        asked = any(message.get("tool_calls") for message in messages)
        return LLMResponse("Over." if asked else None, [] if asked else [self.call], usage=TokenUsage(9, 1, cost=0.001))
'''

END = '''
if __name__ == "__main__":
    take()
'''

TAKE = '''
def take():
    agent.input("Hello.")
'''

CASES = {
    "plain": "agent = shop()" + TAKE,
    "several turns": '''
agent = shop()
def take():
    for prompt in ("One.", "Two.", "Three."):
        agent.input(prompt)
''',
    "streamed": '''
agent = shop(stream=True)
def take():
    list(agent.stream("Hello."))
''',
    "parallel tools": '''
@tool
def look() -> str:
    """Look."""
    return "a view"
class Both(Model):
    def complete(self, messages, tools=None):
        answer = super().complete(messages, tools)
        if answer.tool_calls:
            answer.tool_calls = [*answer.tool_calls, ToolCall("x1", "look", {}), ToolCall("x2", "look", {})]
        return answer
agent = Agent("shop", [refund, look], llm=Both(), plugins=PLUGINS(), quiet=True, parallel_tools=4)
''' + TAKE,
    "awaited": '''
agent = shop()
def take():
    run_async(agent.ainput("Hello."))
''',
    "typed": '''
class Answer(BaseModel):
    text: str
agent = shop(output=Answer)
''' + TAKE,
    "model retried": '''
class Busy(Model):
    def complete(self, messages, tools=None):
        if not Path("busy").exists():
            Path("busy").touch()
            raise ProviderError("busy", kind="overloaded", provider="test")
        return super().complete(messages, tools)
class Again:
    name = "again"
    @on_error
    def again(self, tool_call):
        return Retry() if tool_call is None else None
agent = shop(Again(), llm=Busy())
''' + TAKE,
    "tool retried": '''
@tool
def refund(order: int) -> str:
    """Refund an order."""
    if not Path("failed").exists():
        Path("failed").touch()
        raise OSError("no route")
    return "refunded"
class Again:
    name = "again"
    @on_error
    def again(self, tool_call):
        return Retry()
agent = shop(Again())
''' + TAKE,
    "tool stood in for": '''
class Cache:
    name = "cache"
    @around_tool
    def cached(self, tool_call):
        yield
        return "from the cache"
agent = shop(Cache())
''' + TAKE,
    "model stood in for": '''
class Canned:
    name = "canned"
    @around_llm
    def canned(self, request):
        answer = yield
        return answer
agent = shop(Canned())
''' + TAKE,
    "shadow": '''
agent = shop(shadow(Guard()))
''' + TAKE,
    "rejected": '''
agent = shop(Guard())
''' + TAKE,
    "edited": '''
class Less:
    name = "less"
    @before_each_tool
    def less(self, tool_call):
        tool_call.arguments = {"order": 8}
agent = shop(Less())
''' + TAKE,
    "asked by a handler": '''
class Asking:
    name = "asking"
    @after_user_input
    def ask(self, agent):
        agent.state["said"] = agent.ask("Is it day?")
agent = shop(Asking())
''' + TAKE,
    "compacted": '''
class Compact:
    name = "compact"
    @before_llm
    def short(self, agent, request):
        if len(agent.session["messages"]) > 6:
            del agent.session["messages"][:2]
            request.messages = list(agent.session["messages"])
agent = shop(Compact())
def take():
    for prompt in ("One.", "Two.", "Three."):
        agent.input(prompt)
''',
    "state": '''
class Counts:
    name = "counts"
    @after_user_input
    def count(self, agent):
        agent.state["n"] = agent.state.get("n", 0) + 1
agent = shop(Counts(), state={"n": 5})
''' + TAKE,
    "image": '''
agent = shop()
def take():
    agent.input(["Look.", Image(data=bytes.fromhex("89504e470d0a1a0a"), media_type="image/png")])
''',
    "agent as tool": '''
billing = shop(name="billing")
agent = Agent("front", [billing], llm=Asks("billing", prompt="Do it."), quiet=True)
''' + TAKE,
    "hand-off": '''
billing = shop(name="billing")
agent = Agent("front", sub_agents=[billing], llm=Asks("transfer_to_agent", agent_name="billing"), quiet=True)
''' + TAKE,
    "sequential": 'agent = Sequential("row", [plain("first"), shop(name="billing")], quiet=True)' + TAKE,
    "loop": 'agent = Loop("round", [plain("first"), shop(name="billing")], max_iterations=2, quiet=True)' + TAKE,
    "parallel": 'agent = Parallel("side", [plain("first"), shop(name="billing")], quiet=True)' + TAKE,
    "three levels": '''
low = shop(name="low")
middle = Agent("middle", [low], llm=Asks("low", prompt="Do it."), quiet=True)
agent = Agent("front", [middle], llm=Asks("middle", prompt="Do it."), quiet=True)
''' + TAKE,
    "paused": '''
agent = shop(Waits())
def take():
    pause()
''',
    "paused inside": '''
billing = shop(Waits(), name="billing")
agent = Agent("front", [billing], llm=Asks("billing", prompt="Do it."), quiet=True)
def take():
    pause()
    agent.resume(agent.record, approve=True)
''',
    "resumed after a pause": '''
agent = shop(Waits())
def take():
    pause()
    agent.resume(agent.record, approve=True)
''',
    "resumed after a kill": '''
class Dies:
    name = "dies"
    @after_llm
    def die(self):
        if not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), 9)
agent = shop(Dies())
def take():
    if Path("died").exists():
        agent.resume(newest())
    else:
        agent.input("Hello.")
''',
    "forked": '''
agent = shop()
def take():
    agent.input("Hello.")
    agent.resume(agent.record, place="1.2", fork=True)
''',
    "failed": '''
class Fails:
    name = "fails"
    @after_llm
    def fail(self, response):
        if not response.tool_calls:
            raise KeyError("gone")
agent = shop(Fails())
def take():
    with contextlib.suppress(Exception):
        agent.input("Hello.")
''',
    "interrupted": '''
class Stopped(Model):
    def complete(self, messages, tools=None):
        answer = super().complete(messages, tools)
        if not answer.tool_calls:
            raise KeyboardInterrupt
        return answer
agent = shop(llm=Stopped())
def take():
    with contextlib.suppress(KeyboardInterrupt):
        agent.input("Hello.")
''',
    "truncated": '''
class Cut(Model):
    def complete(self, messages, tools=None):
        answer = super().complete(messages, tools)
        if not answer.tool_calls:
            answer.finish_reason = "length"
        return answer
agent = shop(llm=Cut())
def take():
    with contextlib.suppress(Exception):
        agent.input("Hello.")
''',
    "keyed": '''
agent = shop()
def take():
    agent.for_session("ticket-7").turn("Hello.", number=1)
''',
}
