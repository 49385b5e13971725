"""Every recorded conversation of the three wires through `Agent`, over the real SDKs, plain and streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import create_model
from told import assert_told
from wire_driver import MODES, RETRIED, WIRE, Recording, load, recordings, replay_server

from connectagent import Agent, ProviderError, Retry, Tool, on_error, on_text
from connectagent.models.sdk import WireLLM
from connectagent.replay.replaying import replay

pytestmark = pytest.mark.skipif(not WIRE.is_dir(), reason=f"the recordings are not here: {WIRE}")


def agent_for(recording: Recording, base_url: str, mode: str, told: list[str], **more: Any) -> Agent:
    """An agent whose tools answer what the recording client's tools answered."""

    def recorded(agent: Any, **_: Any) -> Any:
        return recording.result(agent.current_session["pending_tool"]["id"])

    @on_text
    def listen(text: str) -> None:
        told.append(text)

    @on_error
    def tell_the_model(agent: Any, error: Exception) -> Retry | None:
        if getattr(error, "kind", "") != "tool_use_failed":
            return None
        agent.current_session["messages"].append({"role": "user", "content": f"Call the tool again. {error}"})
        return Retry()

    tools = []
    for schema in recording.tools:
        function = schema["function"]
        parameters = function["parameters"] or {"type": "object", "properties": {}}
        tools.append(Tool(function["name"], function["description"] or "", parameters, recorded))
    return Agent(
        "recorded",
        tools,
        recording.system,
        model=f"{recording.provider}/{recording.model}",
        api_key="test-key-1",
        base_url=base_url,
        options=recording.options,
        stream=mode == "stream",
        quiet=True,
        on_events=[listen, tell_the_model],
        **{"log": False, **more},
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_an_agent_drives_a_recorded_conversation_as_it_was(
    path: Path, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    recording = Recording(load(path))
    told: list[str] = []
    calls: list[Any] = []
    models: list[Any] = []
    errors: list[ProviderError] = []
    with replay_server(path, mode) as server:
        agent = agent_for(recording, server.base_url, mode, told, log=None)
        for turn in recording.data["drive"]["turns"]:
            if turn.get("new_conversation"):
                agent.reset_conversation()
            answered = [n for n in turn["exchanges"] if recording.data["exchanges"][n]["response"]["status"] == 200]
            told.clear()
            try:
                agent.input(recording.prompt(turn), max_iterations=len(answered) or 1)
            except ProviderError as error:
                errors.append(error)
            trace = [entry for entry in agent.current_session["trace"] if entry not in calls + models]
            calls += [entry for entry in trace if entry["type"] == "tool_execution"]
            models += [entry for entry in trace if entry["type"] == "llm_call"]
        assert server.n == len(recording.data["exchanges"])
        assert server.errors == []
        assert server.warnings == []
    assert sum(map(assert_told, tmp_path.glob("evals/*.yaml"))) == len(models) > 0
    answers = [entry for entry in models if entry["status"] == "success"]
    last = answers[-1] if answers else None
    failed = [entry for entry in models if entry["status"] == "error"]
    assert [entry["error_kind"] for entry in failed] == recording.error_kinds
    assert [error.kind for error in errors] == [kind for kind in recording.error_kinds if kind != "tool_use_failed"]
    assert [(entry["tool_name"], entry.get("original_arguments", entry["arguments"])) for entry in calls] == (
        recording.calls
    )
    assert (last["content"] if last else None) == recording.text
    usages = [entry["usage"] for entry in answers if entry["usage"]]
    assert [(usage.input_tokens, usage.output_tokens) for usage in usages] == recording.usages
    retries = [retry["status"] for entry in answers for retry in entry.get("retries", [])]
    assert retries == RETRIED.get(path.stem, [])
    if mode == "stream" and last is not None and not errors:
        assert "".join(told).endswith(last["content"] or "")


def test_every_recording_is_driven() -> None:
    assert len(recordings()) == 48


# -- structured output ---------------------------------------------------------------------------


def schema_of(path: Path) -> dict[str, Any] | None:
    """The schema that the recording client asked for, or None."""
    body = load(path)["exchanges"][0]["request"]["body"]
    asked = body.get("response_format") or (body.get("text") or {}).get("format") or {}
    return asked.get("json_schema")


def model_of(schema: dict[str, Any]) -> Any:
    """The pydantic model from which the recording client made its schema."""
    types = {"string": str, "integer": int}
    fields = {name: (types[one["type"]], ...) for name, one in schema["schema"]["properties"].items()}
    return create_model(schema["name"], **fields)  # type: ignore[call-overload]


STRUCTURED = [path for path in recordings() if schema_of(path)]


def test_there_are_recordings_of_structured_output() -> None:
    assert {path.stem for path in STRUCTURED} >= {"openai-chat-structured-output-with-tools", "openai-chat-refusal"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", STRUCTURED, ids=lambda path: path.stem)
def test_a_recorded_structured_answer_is_the_object_and_is_replayed(
    path: Path, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    recording, schema = Recording(load(path)), schema_of(path)
    assert schema is not None
    output = model_of(schema)

    def made(address: str) -> Agent:
        agent = agent_for(recording, address, mode, [], log=None)
        assert isinstance(agent.llm, WireLLM)
        agent.llm = agent.llm.with_options({key: v for key, v in recording.options.items() if key != "response_format"})
        return agent

    (turn,) = recording.data["drive"]["turns"]
    with replay_server(path, mode) as server:
        agent = made(server.base_url)
        if recording.data["id"] == "openai-chat-refusal":
            with pytest.raises(ProviderError) as refused:
                agent.input(recording.prompt(turn), output=output)
            assert refused.value.kind == "refusal"
        else:
            value = agent.input(recording.prompt(turn), output=output)
            assert recording.text is not None and value == output.model_validate_json(recording.text)
            assert recording.calls == [
                (entry["tool_name"], entry["arguments"])
                for entry in agent.session["trace"]
                if entry["type"] == "tool_execution"
            ]
        assert not server.errors
        for received in server.received:
            sent = received["body"]["response_format"]["json_schema"]
            assert (sent["name"], sent["strict"]) == (schema["name"], True)
            assert sent["schema"]["required"] == schema["schema"]["required"]
            assert sent["schema"]["additionalProperties"] is False
    assert agent.record is not None
    played = replay(agent.record, made("http://127.0.0.1:9"))
    assert played.same, played
