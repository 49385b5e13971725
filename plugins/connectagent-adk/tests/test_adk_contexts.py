"""The context, the state and the contents that callbacks are given, and the way back to messages."""

from __future__ import annotations

from typing import Any

import pytest
from connectagent_adk import CallbackContext, InMemoryArtifactService, State, ToolContext, adk_callbacks, types
from connectagent_adk.translation import Ids, contents_of, messages_of, response_from, result_dict

from connectagent import Agent, Image, LLMResponse, ToolCall
from connectagent.testing import ScriptedLLM, call

PNG = b"\x89PNG\r\n"


def test_state_is_a_dict_with_a_delta() -> None:
    value, delta = {"a": 1, "gone": 2}, {}
    state = State(value, delta)
    assert not state.has_delta()
    state["b"] = 2
    state.update({"c": 3})
    assert state.setdefault("d", []) == []
    del state["gone"]
    assert "gone" not in state and state.get("gone", 0) == 0 and state.pop("none", None) is None
    assert state.to_dict() == value == {"a": 1, "b": 2, "c": 3, "d": []}
    assert delta == {"b": 2, "c": 3, "d": [], "gone": None} and state.has_delta()
    assert State.TEMP_PREFIX == "temp:"


def context_of(*prompts: Any, **callbacks: Any) -> list[Any]:
    """What a before_model_callback sees of its context, at each turn."""
    seen: list[Any] = []
    plugin = adk_callbacks(before_model_callback=lambda callback_context, llm_request: seen.append(callback_context))
    agent = Agent("guide", llm=ScriptedLLM(*["ok"] * len(prompts)), plugins=[plugin], log=False, quiet=True)
    for prompt in prompts:
        agent.input(prompt)
    return seen


def test_ids_tell_turns_and_sessions_apart() -> None:
    first, second = context_of("Hi", "Hi")
    [other] = context_of("Hi")
    assert first.agent_name == "guide" and first.function_call_id is None
    assert first.invocation_id != second.invocation_id
    assert first.session.id == second.session.id != other.session.id
    assert isinstance(first, CallbackContext) and isinstance(first, ToolContext)


def test_the_users_content_holds_text_and_images() -> None:
    [context] = context_of(["Look", Image(PNG)])
    assert [part.text for part in context.user_content.parts] == ["Look", None]
    assert context.user_content.parts[1].inline_data == types.Blob(PNG, "image/png")
    assert context.user_content.role == "user"


def test_the_session_shows_the_conversation_as_events() -> None:
    context = context_of("One", "Two")[-1]
    events = [(event.author, event.content.parts[0].text) for event in context.session.events]
    assert events == [("user", "One"), ("guide", "ok"), ("user", "Two"), ("guide", "ok")]
    assert context.session.state is context.session.state


@pytest.mark.parametrize("name", ["request_credential", "search_memory"])
def test_what_adk_has_and_connectagent_has_not_is_told(name: str) -> None:
    [context] = context_of("Hi")
    with pytest.raises(AttributeError, match=f"ADK's {name} is not here: "):
        getattr(context, name)
    with pytest.raises(AttributeError, match="no 'agent_nam'"):
        _ = context.agent_nam


def test_artifacts_have_versions_and_belong_to_a_session_or_the_user() -> None:
    seen: list[Any] = []

    async def keep(callback_context: Any) -> None:
        part = types.Part(text=str(callback_context.invocation_id))
        for name in ("own.txt", "user:all.txt"):
            seen.append(await callback_context.save_artifact(name, part))
        assert callback_context.actions.artifact_delta["own.txt"] == seen[-2]
        seen.append(await callback_context.list_artifacts())
        assert await callback_context.load_artifact("own.txt") is part
        assert await callback_context.load_artifact("own.txt", version=7) is None

    plugin = adk_callbacks(before_agent_callback=keep, artifact_service=InMemoryArtifactService())
    agent = Agent("guide", llm=ScriptedLLM("1", "2", "3"), plugins=[plugin], log=False, quiet=True)
    agent.input("One")
    agent.input("Two")
    agent.reset_conversation()
    agent.input("Three")
    names = ["own.txt", "user:all.txt"]
    assert seen == [0, 0, names, 1, 1, names, 0, 2, names]


def test_artifacts_without_a_service_are_a_clear_error() -> None:
    async def keep(callback_context: Any) -> None:
        await callback_context.save_artifact("a", types.Part(text="x"))

    agent = Agent("a", llm=ScriptedLLM("1"), plugins=[adk_callbacks(before_agent_callback=keep)], log=False, quiet=True)
    with pytest.raises(ValueError, match=r"artifact_service=InMemoryArtifactService\(\)"):
        agent.input("Hi")


def with_artifacts(seen: list[Any], *plugins: Any, **options: Any) -> Agent:
    """An agent whose callback saves and loads artifacts."""

    async def keep(callback_context: Any) -> None:
        await callback_context.save_artifact("a.txt", types.Part(text="Ä"))
        await callback_context.save_artifact("user:a.png", types.Part.from_bytes(data=PNG, mime_type="image/png"))
        for name, version in (("a.txt", None), ("user:a.png", 0), ("a.txt", 7), ("none", None)):
            seen.append(await callback_context.load_artifact(name, version))
        seen.append(await callback_context.list_artifacts())

    plugin = adk_callbacks(before_agent_callback=keep, **options)
    return Agent("guide", llm=ScriptedLLM("1"), plugins=[*plugins, plugin], log=False, quiet=True)


@pytest.mark.parametrize("shared", [True, False])
def test_artifacts_are_traced_and_those_of_the_plugin_artifacts_are_shared_with_it(shared: bool) -> None:
    kept = pytest.importorskip("connectagent_artifacts", reason="connectagent-artifacts is not installed")
    seen: list[Any] = []
    plugins = [kept.Artifacts(kept.InMemoryStore())] if shared else []
    agent = with_artifacts(seen, *plugins, **({} if shared else {"artifact_service": InMemoryArtifactService()}))
    agent.input("Hi")
    picture = types.Part.from_bytes(data=PNG, mime_type="image/png")
    assert seen == [types.Part(text="Ä"), picture, None, None, ["a.txt", "user:a.png"]]
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "artifact"]
    assert [(entry["name"], entry["version"]) for entry in entries] == [("a.txt", 0), ("user:a.png", 0)]
    assert all(entry["by"]["handler"].endswith("keep") for entry in entries)
    if shared:
        assert plugins[0].load(agent, "a.txt").text == "Ä" and plugins[0].list(agent) == seen[-1]


@pytest.mark.parametrize("error", [FileNotFoundError("a"), KeyError("a")])
def test_an_artifact_that_a_store_cannot_find_is_none(error: Exception) -> None:
    class Store(InMemoryArtifactService):
        async def load_artifact(self, **given: Any) -> Any:
            raise error

    seen: list[Any] = []
    with_artifacts(seen, artifact_service=Store()).input("Hi")
    assert seen[:4] == [None] * 4


def test_state_of_the_app_and_of_a_user_is_shared_and_state_of_a_turn_is_not() -> None:
    kept: dict[str, Any] = {}
    seen: list[Any] = []

    def count(callback_context: Any) -> None:
        state = callback_context.state
        for key in ("app:turns", "user:turns", "temp:turns", "turns"):
            state[key] = state.get(key, 0) + 1
        seen.append([state[key] for key in ("app:turns", "user:turns", "temp:turns", "turns")])

    def agent_of(user: str, *callbacks: Any) -> Agent:
        plugin = adk_callbacks(before_agent_callback=list(callbacks), shared_state=kept, user_id=user)
        return Agent("guide", llm=ScriptedLLM("1", "2"), plugins=[plugin], log=False, quiet=True)

    ada = agent_of("ada", count)
    ada.input("Hi")
    agent_of("bob", count).input("Hi")
    agent_of("ada", count).input("Hi")
    ada.input("Hi")
    assert seen == [[1, 1, 1, 1], [2, 1, 1, 1], [3, 2, 1, 1], [4, 3, 1, 2]]
    assert kept == {"app:turns": 4, "user:ada:turns": 3, "user:bob:turns": 1}

    def forget(callback_context: Any) -> None:
        del callback_context.state["user:turns"]

    agent_of("ada", forget).input("Hi")
    assert "user:ada:turns" not in kept


def test_nobody_finds_the_state_of_another_user() -> None:
    kept: dict[str, Any] = {}
    seen: list[Any] = []

    def write(callback_context: Any) -> None:
        seen.append(callback_context.state.to_dict())
        callback_context.state["user:name"] = callback_context.user_id

    for user in ("ada", "bob", "ada:user", "a", "ada:", "ada", "ada%3A"):
        plugin = adk_callbacks(before_agent_callback=write, shared_state=kept, user_id=user)
        Agent("guide", llm=ScriptedLLM("1"), plugins=[plugin], log=False, quiet=True).input("Hi")
    assert seen == [{}, {}, {}, {}, {}, {"user:name": "ada"}, {}]


def test_state_is_not_shared_unasked() -> None:
    def write(callback_context: Any) -> None:
        seen.append(callback_context.state.get("user:name"))
        callback_context.state["user:name"] = "Ada"

    seen: list[Any] = []
    plugin = adk_callbacks(before_agent_callback=write)
    for _ in range(2):
        Agent("guide", llm=ScriptedLLM("1"), plugins=[plugin], log=False, quiet=True).input("Hi")
    assert seen == [None, None]


CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"role": "user", "content": [{"type": "text", "text": "Look"}, Image(PNG).part()]},
    {
        "role": "assistant",
        "content": "Wait",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
]


def test_contents_say_what_the_messages_say() -> None:
    ids = Ids()
    pairs = contents_of(CONVERSATION, types)
    assert [message for content, _ in pairs for message in messages_of(content, ids)] == CONVERSATION
    assert [message for _, stands in pairs for message in stands] == CONVERSATION


def test_calls_and_results_without_ids_find_each_other() -> None:
    made = [types.Part.from_function_call(name="look", args={}) for _ in range(2)]
    found = [types.Part.from_function_response(name="look", response={"n": n}) for n in range(2)]
    ids = Ids()
    first, *results = [
        *messages_of(types.Content(role="model", parts=made), ids),
        *messages_of(types.Content(role="user", parts=found), ids),
    ]
    assert [each["id"] for each in first["tool_calls"]] == [each["tool_call_id"] for each in results]
    assert [each["content"] for each in results] == ['{"n": 0}', '{"n": 1}']


def test_dicts_are_read_in_both_spellings() -> None:
    parts = [{"functionCall": {"id": "1", "name": "look", "args": {"a": 1}}}, {"text": "b", "thought": True}]
    response = response_from({"content": {"role": "model", "parts": parts}})
    assert response == LLMResponse(None, [ToolCall("1", "look", {"a": 1})])


def test_arguments_that_are_no_dict_are_an_error_that_the_model_reads() -> None:
    def look() -> str:
        """Look."""
        return "x"

    part = {"function_call": {"name": "look", "args": [1]}}
    answers = iter([{"parts": [part]}, None])
    llm = ScriptedLLM("ok")
    plugin = adk_callbacks(before_model_callback=lambda callback_context, llm_request: next(answers))
    Agent("a", [look], llm=llm, plugins=[plugin], log=False, quiet=True).input("Hi")
    assert "must be a JSON object, not list" in str(llm.requests[0].messages[-1]["content"])


@pytest.mark.parametrize(
    ("text", "parse_all", "result"),
    [
        ("Paris", True, {"result": "Paris"}),
        ('{"a": 1}', False, {"a": 1}),
        ("42", False, {"result": "42"}),
        ("42", True, {"result": 42}),
        ("[1]", True, {"result": [1]}),
    ],
)
def test_a_result_is_a_dict(text: str, parse_all: bool, result: dict[str, Any]) -> None:
    assert result_dict(text, parse_all=parse_all) == result


def test_an_edited_result_leaves_its_neighbours_alone() -> None:
    def edit(callback_context: Any, llm_request: Any) -> None:
        for content in llm_request.contents:
            for part in content.parts:
                if part.function_response and part.function_response.name == "a":
                    part.function_response.response = {"result": "[left out]"}

    def a() -> str:
        """A."""
        return "long"

    def b() -> str:
        """B."""
        return '{"kept":  "as it is"}'

    llm = ScriptedLLM([call("a"), call("b")], "ok")
    plugin = adk_callbacks(before_model_callback=edit)
    agent = Agent("guide", [a, b], llm=llm, plugins=[plugin], log=False, quiet=True)
    agent.input("Hi")
    assert [message["content"] for message in llm.requests[1].messages[-2:]] == ["[left out]", '{"kept":  "as it is"}']
    assert agent.current_session is not None
    assert agent.current_session["messages"][2]["content"] == "long"


def edited_request(edit: Any) -> list[Any]:
    """What the model is sent where a callback edits the contents of a conversation with two rounds."""

    def look(at: str) -> str:
        """Look."""
        return at

    llm = ScriptedLLM([call("look", at="a"), call("look", at="b")], [call("look", at="c")], "ok")
    turns = iter([None, None, edit])
    plugin = adk_callbacks(
        before_model_callback=lambda callback_context, llm_request: (next(turns) or len)(llm_request.contents) and None
    )
    Agent("guide", [look], llm=llm, plugins=[plugin], log=False, quiet=True).input("Hi")
    return llm.requests[2].messages


@pytest.mark.parametrize(
    "edit",
    [
        lambda contents: contents.reverse(),
        lambda contents: contents.pop(1),
        lambda contents: contents.pop(2),
        lambda contents: contents.append(contents[1]),
        lambda contents: contents[2].parts.pop(),
        lambda contents: setattr(contents[1], "role", "user"),
        lambda contents: setattr(contents[3], "parts", None),
        lambda contents: contents.insert(2, {"role": "function", "parts": [{"text": "x"}]}),
    ],
)
def test_whatever_is_done_to_the_contents_every_call_that_is_sent_has_its_result(edit: Any) -> None:
    open_ids: list[str] = []
    for message in edited_request(edit):
        if message["role"] == "tool":
            open_ids.remove(message["tool_call_id"])
            continue
        assert open_ids == []
        assert message["role"] == "assistant" or "tool_calls" not in message
        open_ids = [each["id"] for each in message.get("tool_calls", ())]
    assert open_ids == []


def test_a_request_without_contents_is_still_one_that_providers_take() -> None:
    def empty(callback_context: Any, llm_request: Any) -> None:
        llm_request.contents = []
        llm_request.config.system_instruction = None

    llm = ScriptedLLM("ok")
    plugin = adk_callbacks(before_model_callback=empty)
    Agent("guide", [], "Sys", llm=llm, plugins=[plugin], log=False, quiet=True).input("Hi")
    assert [message["role"] for message in llm.requests[0].messages] == ["user"]


def test_what_is_shown_of_a_content_is_what_is_set() -> None:
    assert (
        repr(types.Content(role="user", parts=[types.Part(text="x")])) == "Content(parts=[Part(text='x')], role='user')"
    )
