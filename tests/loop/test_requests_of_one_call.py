"""`request.model`, `.tools` and `.options` that a handler sets are those of that one call, and the trace tells so."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from wire_server import Answer, WireServer, chat, chat_stream, finish, message

from connectagent import (
    Agent,
    LLMRequest,
    Pause,
    Paused,
    Retry,
    after_llm,
    around_llm,
    before_llm,
    on_error,
    register_models,
)
from connectagent.errors import ConfigError, HookResultError
from connectagent.testing import ScriptedLLM, replayed

MODES = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
Edit = Callable[[LLMRequest], None]


def in_before(edit: Edit) -> Any:
    @before_llm
    def change(agent: Agent, request: LLMRequest) -> None:
        if agent.current_session["turn"] == 1:  # type: ignore[index]
            edit(request)

    return change


def in_around(edit: Edit) -> Any:
    @around_llm
    def change(agent: Agent, request: LLMRequest) -> Generator[None, Any, None]:
        if agent.current_session["turn"] == 1:  # type: ignore[index]
            edit(request)
        yield

    return change


HOOKS = pytest.mark.parametrize("hook", [in_before, in_around])


def look(x: int = 0) -> str:
    """Look."""
    return "seen"


def said(text: str, stream: bool) -> Answer:
    return chat_stream({"content": text}, finish()) if stream else chat(text)


def calls_of(agent: Agent) -> list[dict[str, Any]]:
    return [entry for entry in agent.current_session["trace"] if entry["type"] == "llm_call"]  # type: ignore[index]


@register_models
def other_models() -> dict[str, Any]:
    return {"other": lambda name: ScriptedLLM("Other.", model=name)}


@MODES
@HOOKS
def test_another_model_is_asked_in_that_call_only(hook: Any, stream: bool) -> None:
    def choose(request: LLMRequest) -> None:
        request.model = "other/x"

    llm = ScriptedLLM("Own.")
    agent = Agent("a", llm=llm, plugins=[other_models, hook(choose)], stream=stream, log=False, quiet=True)
    assert [agent.input("Hi"), agent.input("Hi")] == ["Other.", "Own."]
    assert [entry["model"] for entry in calls_of(agent)] == ["other/x", "scripted"]
    assert len(llm.requests) == 1


@MODES
@HOOKS
def test_tools_and_options_are_sent_in_that_call_only(hook: Any, stream: bool) -> None:
    def change(request: LLMRequest) -> None:
        assert request.options == {"temperature": 0.5, "extra_body": {"seed": 1}}
        request.tools = []
        request.options["temperature"] = 0.0
        request.options["extra_body"]["user"] = "me"
        request.options["top_p"] = 0.1

    with WireServer(said("One.", stream), said("Two.", stream)) as server:
        options = {"temperature": 0.5, "extra_body": {"seed": 1}}
        agent = Agent(
            "a", look, model="gpt-4o", api_key="k", base_url=server.openai_url, options=options,
            plugins=[hook(change)], stream=stream, log=False, quiet=True,
        )  # fmt: skip
        assert [agent.input("Hi"), agent.input("Hi")] == ["One.", "Two."]
    first, second = server.requests
    sent = [[body.get(key) for key in ("temperature", "seed", "top_p", "user")] for body in (first, second)]
    assert sent == [[0.0, 1, 0.1, "me"], [0.5, 1, None, None]]
    assert "tools" not in first and len(second["tools"]) == 1
    entries = calls_of(agent)
    assert entries[0]["options"] == {"temperature": 0.0, "extra_body": {"seed": 1, "user": "me"}, "top_p": 0.1}
    assert "options" not in entries[1] and options == {"temperature": 0.5, "extra_body": {"seed": 1}}
    assert "tools" not in entries[0] and entries[1]["tools"] == ["look"]  # none were offered before either


def test_an_option_that_a_handler_removes_is_not_sent() -> None:
    with WireServer(message("One."), message("Two.")) as server:
        agent = Agent(
            "a", model="claude-x", api_key="k", base_url=server.url, options={"temperature": 0.5, "top_k": 3},
            plugins=[in_before(lambda request: request.options.pop("top_k"))], log=False, quiet=True,
        )  # fmt: skip
        agent.input("Hi")
        agent.input("Hi")
    assert [body.get("top_k") for body in server.requests] == [None, 3]


def test_options_replace_those_of_an_llm_that_was_given() -> None:
    from connectagent.models.openai import OpenAILLM

    with WireServer(chat("One.")) as server:
        llm = OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url, options={"temperature": 0.5})
        change = in_before(lambda request: setattr(request, "options", {**request.options, "seed": 4}))
        Agent("a", llm=llm, plugins=[change], log=False, quiet=True).input("Hi")
    assert (server.requests[0]["temperature"], server.requests[0]["seed"]) == (0.5, 4)
    assert llm.options == {"temperature": 0.5}


@MODES
def test_what_a_handler_chose_holds_for_each_attempt(stream: bool) -> None:
    @on_error
    def again() -> Retry:
        return Retry()

    def change(request: LLMRequest) -> None:
        request.model, request.options = "gpt-4o-mini", {"seed": 4}

    bad = Answer({"error": {"message": "no"}}, 400)
    with WireServer(bad, said("Done.", stream)) as server:
        agent = Agent(
            "a", model="gpt-4o", api_key="k", base_url=server.openai_url, stream=stream,
            plugins=[in_before(change), again], log=False, quiet=True,
        )  # fmt: skip
        assert agent.input("Hi") == "Done."
    assert [(body["model"], body["seed"]) for body in server.requests] == [("gpt-4o-mini", 4)] * 2
    failed, done = calls_of(agent)
    assert failed["model"] == "openai/gpt-4o-mini" and failed["options"] == done["options"] == {"seed": 4}


def test_the_model_of_a_retry_comes_after_that_of_a_handler() -> None:
    @on_error
    def elsewhere() -> Retry:
        return Retry(model="offline")

    change = in_before(lambda request: setattr(request, "model", "failing"))

    @register_models
    def failing() -> dict[str, Any]:
        return {"failing": lambda name: ScriptedLLM(ValueError("no"), model=name)}

    agent = Agent("a", llm=ScriptedLLM("Own."), plugins=[failing, change, elsewhere], log=False, quiet=True)
    assert "[offline]" in agent.input("Hi")
    assert [entry["model"] for entry in calls_of(agent)] == ["failing", "offline"]


def test_an_llm_of_others_gets_messages_and_tools_only() -> None:
    class Theirs:
        model = "theirs"

        def complete(self, messages: list[Any], tools: Any = None) -> Any:
            return "Done."

    seen: list[Any] = []

    def change(request: LLMRequest) -> None:
        seen.append(dict(request.options))
        request.options["temperature"] = 1

    agent = Agent("a", llm=Theirs(), options={"seed": 2}, plugins=[in_before(change)], log=False, quiet=True)
    assert agent.input("Hi") == "Done." and seen == [{"seed": 2}]
    assert "options" not in calls_of(agent)[0]  # nothing was sent


def test_a_handler_that_replaces_the_agents_model_is_obeyed() -> None:
    @before_llm
    def replace(agent: Agent) -> None:
        agent.llm = ScriptedLLM("New.", model="new")

    agent = Agent("a", llm=ScriptedLLM("Old.", model="old"), plugins=[replace], log=False, quiet=True)
    assert agent.input("Hi") == "New." and calls_of(agent)[0]["model"] == "new"


def test_the_change_of_a_request_names_its_handler() -> None:
    change = in_before(lambda request: request.options.update(seed=1))
    agent = Agent("a", llm=ScriptedLLM("Done."), plugins=[change], log=False, quiet=True)
    agent.input("Hi")
    (entry,) = [one for one in agent.current_session["trace"] if one["type"] == "change"]  # type: ignore[index]
    assert entry["value"]["options"] == {"seed": 1} and entry["by"]["handler"] == "change"


def test_the_values_of_headers_are_not_traced() -> None:
    change = in_before(lambda request: request.options.update(seed=1, extra_headers={"x-own": "header-of-code-4410"}))
    with WireServer(chat("One.")) as server:
        agent = Agent("a", model="my", base_url=server.openai_url, plugins=[change], log=False, quiet=True)
        agent.input("Hi")
    assert server.headers[0]["x-own"] == "header-of-code-4410"
    assert calls_of(agent)[0]["options"] == {"seed": 1, "extra_headers": {"x-own": "***"}}
    assert "header-of-code" not in str(agent.current_session["trace"])  # type: ignore[index]


HEADER = "header-of-code-4410"


@before_llm
def gives_header(request: LLMRequest) -> None:
    """Gives a header, and more."""
    request.options.update(seed=1, extra_headers={**request.options.get("extra_headers", {}), "x-own": HEADER})
    request.messages = [*request.messages, {"role": "user", "content": "Briefly."}]


@before_llm
def gives_seed(request: LLMRequest) -> None:
    request.options["seed"] = 1


@before_llm
def waits() -> None:
    raise Pause("Send it?")


def sends(server: WireServer, *plugins: Any, **options: Any) -> Agent:
    url = server.openai_url
    return Agent("a", model="my", base_url=url, api_key="k", plugins=list(plugins), quiet=True, options=options)


def test_the_record_has_no_values_of_headers_and_the_request_of_a_resumed_turn_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @after_llm
    def fails() -> None:
        raise ValueError("once")

    @around_llm
    def dies(request: LLMRequest) -> Any:
        raise KeyboardInterrupt
        yield

    with WireServer(chat("One."), chat("Two.")) as server:
        agent = sends(server, gives_header, dies)
        with pytest.raises(KeyboardInterrupt):
            agent.input("Hi")
        assert agent.record is not None and HEADER not in agent.record.read_text()
        assert sends(server, gives_header).resume(agent.record) == "One."
        agent = sends(server, gives_header, fails)
        with pytest.raises(ValueError, match="once"):
            agent.input("Hi")
        assert agent.record is not None and HEADER not in agent.record.read_text()
        assert sends(server, gives_header).resume(agent.record) == "Two."
    assert [headers["x-own"] for headers in server.headers] == [HEADER] * 2
    assert [len(body["messages"]) for body in server.requests] == [2, 2]


def test_a_pause_keeps_what_handlers_before_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    headers = {"x-own": HEADER}
    with WireServer(chat("One.")) as server:
        agent = sends(server, gives_seed, waits, extra_headers=headers)
        with pytest.raises(Paused):
            agent.input("Hi")
        assert agent.record is not None and HEADER not in agent.record.read_text()
        again = sends(server, gives_seed, waits, extra_headers=headers)
        assert again.resume(agent.record, approve=True) == "One."
    assert server.headers[0]["x-own"] == HEADER and server.requests[0]["seed"] == 1


def test_a_pause_behind_a_handler_that_gave_headers_says_that_it_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with WireServer(chat("One.")) as server:
        agent = sends(server, gives_header, waits)
        with pytest.raises(Paused):
            agent.input("Hi")
        assert agent.record is not None and HEADER not in agent.record.read_text()
        rejected = Path("rejected.yaml")
        rejected.write_text(agent.record.read_text())
        assert sends(server, gives_header, waits).resume(rejected, reject="No.") == "rejected: No."
        with pytest.raises(ConfigError, match="values records do not contain"):
            sends(server, gives_header, waits).resume(agent.record, approve=True)
    assert server.requests == []


@HOOKS
def test_a_replay_expects_the_model_that_was_chosen(hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def agent(*plugins: Any) -> Agent:
        return Agent("a", llm=ScriptedLLM("Own.", "Own."), plugins=[other_models, *plugins], quiet=True)

    change = hook(lambda request: setattr(request, "model", "other/x"))
    first = agent(change)
    assert [first.input("Hi"), first.input("Again")] == ["Other.", "Own."]
    (record,) = (tmp_path / ".co" / "evals").glob("*.yaml")
    assert replayed(record, agent(change)).same
    divergence = replayed(record, agent()).divergence
    assert divergence is not None and divergence.place == "1.1"


def test_what_no_request_can_have_is_the_handlers_mistake() -> None:
    for name, value in (("model", 7), ("options", None), ("tools", None)):
        change = in_before(lambda request, name=name, value=value: setattr(request, name, value))  # type: ignore[misc]
        with pytest.raises(HookResultError, match="a dict of options"):
            Agent("a", llm=ScriptedLLM("Done."), plugins=[change], log=False, quiet=True).input("Hi")
    unknown = in_before(lambda request: setattr(request, "model", "nobody/x"))
    agent = Agent("a", llm=ScriptedLLM("Done."), plugins=[unknown], log=False, quiet=True)
    with pytest.raises(ConfigError, match="unknown provider 'nobody'"):
        agent.input("Hi")
    assert (calls_of(agent)[0]["model"], calls_of(agent)[0]["status"]) == ("nobody/x", "error")
