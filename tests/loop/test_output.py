"""Typed results: `output=` of `Agent`, `input()`, `stream()`, `resume()` and `agent.ask()`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import forked
import pytest
from pydantic import BaseModel, TypeAdapter, create_model
from typing_extensions import TypedDict
from wire_server import (
    Answer,
    WireServer,
    block_events,
    chat,
    chat_stream,
    finish,
    message,
    message_stream,
    tool_use,
)

from connectagent import (
    Agent,
    ConfigError,
    LLMResponse,
    OutputError,
    Pause,
    Paused,
    ProviderError,
    Sequential,
    after_llm,
    after_tools,
    before_each_tool,
    on_complete,
    on_trace,
)
from connectagent.loop.output import Form
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM
from connectagent.models.output_forms import OutputForm, response_format
from connectagent.models.strict_schemas import OPENAI
from connectagent.testing import HookRecorder, ScriptedLLM, call, replayed

ROOT = Path(__file__).parents[2]


class City(BaseModel):
    """A city."""

    name: str
    people: int = 0


@dataclass
class Point:
    """A point."""

    x: int
    y: int


class Film(TypedDict):
    title: str
    year: int


PARIS = '{"name": "Paris", "people": 2000000}'


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def made(*script: Any, name: str = "a", **arguments: Any) -> Agent:
    return Agent(name, [double], llm=ScriptedLLM(*script), quiet=True, **{"log": False, **arguments})


CASES = [
    (City, PARIS, City(name="Paris", people=2000000)),
    (City, f"Here it is:\n```json\n{PARIS}\n```", City(name="Paris", people=2000000)),
    (Point, '{"x": 1, "y": 2}', Point(1, 2)),
    (Film, '{"title": "M", "year": 1931}', {"title": "M", "year": 1931}),
    (list[int], '{"value": [1, 2]}', [1, 2]),
    (dict[str, float], '{"value": {"a": 1.5}}', {"a": 1.5}),
    (int, '{"value": 42}', 42),
    (Literal["yes", "no"], '{"value": "no"}', "no"),
    (City | Point, '{"value": {"x": 1, "y": 2}}', Point(1, 2)),
]


@pytest.mark.parametrize(("output", "text", "value"), CASES)
@pytest.mark.parametrize("where", ["input", "Agent"])
def test_the_result_is_of_the_type_that_is_asked_for(output: Any, text: str, value: Any, where: str) -> None:
    if where == "Agent":
        assert made(text, output=output).input("Go.") == value
    else:
        assert made(text).input("Go.", output=output) == value


def test_without_it_the_result_is_text() -> None:
    assert made(PARIS).input("Go.", output=str) == made(PARIS).input("Go.") == PARIS


def test_the_form_of_one_turn_is_not_that_of_the_next() -> None:
    agent = made(PARIS, "[1]", '{"x": 1, "y": 2}', output=City)
    assert agent.input("Go.") == City(name="Paris", people=2000000)
    assert agent.input("Go.", output=str) == "[1]"
    assert agent.input("Go.", output=Point) == Point(1, 2)


def test_tools_are_still_there() -> None:
    agent = made(call("double", x=2), PARIS)
    assert agent.input("Go.", output=City).name == "Paris"
    assert [entry["status"] for entry in agent.session["trace"] if entry["type"] == "tool_execution"] == ["success"]
    llm: Any = agent.llm
    assert [tool["function"]["name"] for tool in llm.requests[1].tools] == ["double"]


def test_an_answer_that_does_not_fit_is_sent_back() -> None:
    recorder = HookRecorder()
    agent = made("Paris.", call("double", x=2), '{"people": "many"}', PARIS, plugins=[recorder])
    assert agent.input("Go.", output=City).people == 2_000_000
    sent_back = [message["content"] for message in agent.session["messages"] if message["role"] == "user"][1:]
    assert sent_back[0].startswith("That does not fit City:\n- the answer: Invalid JSON")
    assert "- name: Field required" in sent_back[1] and "- people: Input should be a valid integer" in sent_back[1]
    assert agent.session["iteration"] == 4
    by = [entry["by"] for entry in agent.session["trace"] if entry["type"] == "message"]
    assert by == [{"plugin": "connectagent"}] * 2
    assert [name for name in recorder.names if name == "on_complete"] == ["on_complete"]


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_it_is_an_error_when_it_never_fits(retries: int) -> None:
    agent = made(*["Paris."] * 5, output=City, output_retries=retries)
    with pytest.raises(OutputError, match=r"scripted gave no City, .*\n.*Invalid JSON[\s\S]*Its answer: 'Paris\.'"):
        agent.input("Go.")
    llm: Any = agent.llm
    assert len(llm.requests) == retries + 1
    assert agent.input("Go.", output=str) == "Paris."  # the conversation is still valid


def test_after_the_error_the_turn_can_go_on_with_new_chances(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    agent = made(*["Paris."] * 3, log=None)
    with pytest.raises(OutputError):
        agent.input("Go.", output=City)
    again = made("Paris?", PARIS, log=None)
    assert again.resume(agent.record, output=City) == City(name="Paris", people=2_000_000)


def test_a_refusal_is_no_misfit() -> None:
    with pytest.raises(ProviderError, match="refused to answer: No") as raised:
        made(LLMResponse("No.", finish_reason="refusal")).input("Go.", output=City)
    assert raised.value.kind == "refusal"


@pytest.mark.parametrize("way", ["ended", "max_iterations", "on_complete"])
def test_a_result_that_is_no_answer_is_an_error_that_names_the_outcome(way: str) -> None:
    @after_tools
    def stop(agent: Agent) -> None:
        if way == "ended":
            agent.end_turn("Enough.")

    @on_complete
    def replace(result: str) -> str | None:
        return "Replaced." if way == "on_complete" else None

    script = [call("double", x=1)] * 3 + [PARIS]
    agent = made(*script, plugins=[stop, replace], max_iterations=2 if way == "max_iterations" else 9)
    outcome = "answered" if way == "on_complete" else way
    with pytest.raises(OutputError, match=rf"agent 'a' ended its turn \({outcome}\) with a result that is no City"):
        agent.input("Go.", output=City)
    assert agent.session["outcome"] == outcome


def test_a_handler_may_give_a_result_that_fits() -> None:
    @on_complete
    def replace(result: str) -> str:
        return json.dumps({**json.loads(result), "people": 1})

    assert made(PARIS, plugins=[replace]).input("Go.", output=City).people == 1


def test_a_streamed_turn_ends_with_the_object() -> None:
    *_, last = made("Paris.", PARIS).stream("Go.", output=City)
    assert last["result"] == City(name="Paris", people=2_000_000)


@pytest.mark.parametrize("output", [object(), "City", 5, lambda: 1])
def test_what_is_no_type_is_refused(output: Any) -> None:
    with pytest.raises(ConfigError, match="output is a pydantic model, a dataclass, a TypedDict or a type"):
        made(PARIS, output=output)


# -- agents in agents ----------------------------------------------------------------------------


def test_an_agent_that_is_a_tool_gives_its_answer_as_json() -> None:
    child = made("Paris.", PARIS, name="geographer", output=City)
    parent = made(call("geographer", prompt="Which?"), "Done.", name="parent")
    parent.add_tool(child)
    assert parent.input("Go.") == "Done."
    [entry] = [one for one in parent.session["trace"] if one["type"] == "tool_execution"]
    assert json.loads(entry["result"]) == {"name": "Paris", "people": 2_000_000}


def test_a_body_gets_objects_of_its_children() -> None:
    child = made(PARIS, '{"x": 3, "y": 4}', name="child", output=City)

    def run(agent: Any) -> str:
        return f"{child.input('Where?').people} {child.input('Point?', output=Point).x}"

    assert Agent("body", run=run, sub_agents=[child], log=False, quiet=True).input("Go.") == "2000000 3"


def test_who_takes_over_gives_the_form_too() -> None:
    expert = made("Paris.", PARIS, name="expert")
    front = made(call("transfer_to_agent", agent_name="expert"), name="front", sub_agents=[expert])
    assert front.input("Go.", output=City) == City(name="Paris", people=2_000_000)


def test_the_last_step_of_a_workflow_gives_the_result() -> None:
    one, two = made("Notes.", name="one"), made(PARIS, name="two", output=City)
    steps = Sequential("steps", [one, two], log=False, quiet=True)
    assert steps.input("Go.", output=City).name == "Paris"


# -- pause, kill, cost, ask ----------------------------------------------------------------------


def test_a_paused_turn_gives_the_object_when_it_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    @before_each_tool
    def ask_first() -> None:
        raise Pause("May it?")

    first = made("Paris.", call("double", x=1), plugins=[ask_first], log=None, output=City)
    with pytest.raises(Paused):
        first.input("Go.")
    second = made("{}", PARIS, plugins=[ask_first], log=None, output=City)
    assert second.resume(first.record, approve=True).name == "Paris"
    third: Any = made(PARIS, output=City)
    sent_back = [one for one in second.session["messages"] if "does not fit City" in str(one["content"])]
    assert len(sent_back) == 2  # one of them in the process before
    assert third.input("Go.").name == "Paris"


KILLED = """
import os, sys
from pydantic import BaseModel, TypeAdapter, create_model
from connectagent import Agent, on_trace
from connectagent.testing import ScriptedLLM, call

class City(BaseModel):
    name: str

def save(x: int) -> str:
    "Save."
    open("saved", "a").write("x")
    return "saved"

script = ["Paris.", call("save", x=1), "{}", '{"name": "Paris"}']
number = [0]

@on_trace
def die(entry):
    number[0] += 1
    if number[0] == int(sys.argv[1]):
        os.kill(os.getpid(), 9)

records = [os.path.join(".co/evals", name) for name in os.listdir(".co/evals")] if os.path.isdir(".co/evals") else []
done = [line for name in records for line in open(name) if "type: llm_call" in line or '"llm_call"' in line]
agent = Agent("a", [save], llm=ScriptedLLM(*script[len(done):]), plugins=[die], quiet=True, output=City)
print(repr(agent.resume(records[0]) if records else agent.input("Go.")))
"""


def test_killed_anywhere_it_gives_the_object_and_repeats_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = 0
    for point in range(1, 30):
        place = tmp_path / str(point)
        place.mkdir()
        for die_at in (point, 10_000):
            done = forked.run("-c", KILLED, str(die_at), cwd=place, env=environment)
            if done.returncode == 0:
                break
            assert done.returncode == -9, done.stderr
        assert done.stdout.strip() == "City(name='Paris')", (point, done.stderr)
        assert (place / "saved").read_text() == "x"
        if die_at == point:
            finished += 1
            break
    assert finished == 1  # the last point lies behind the end: all points before it were tried


def test_ask_takes_any_type_and_its_cost_counts() -> None:
    answers: list[Any] = []

    @after_llm
    def ask(agent: Any) -> None:
        if not answers:
            answers.append(agent.ask("Which numbers?", output=list[int]))

    agent = made("Hm.", '{"value": [1, 2]}', PARIS, plugins=[ask])
    agent.llm = ScriptedLLM("Paris.", '{"value": [1, 2]}', PARIS)
    assert agent.input("Go.", output=City).name == "Paris"
    assert answers == [[1, 2]]


def test_the_entry_of_the_users_message_names_the_form() -> None:
    entries: list[Any] = []

    @on_trace
    def keep(entry: Any) -> None:
        entries.append(entry)

    made(PARIS, plugins=[keep]).input("Go.", output=City)
    assert entries[0]["type"] == "user_input" and entries[0]["output"] == "City"


# -- the wires -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_openai_gets_the_schema_beside_the_tools(stream: bool) -> None:
    called = {"index": 0, "id": "c1", "type": "function", "function": {"name": "double", "arguments": '{"x": 2}'}}
    plain = (chat(calls=[("c1", "double", '{"x": 2}')]), chat("Paris."), chat(PARIS))
    streamed = (
        chat_stream({"tool_calls": [called]}, finish("tool_calls")),
        chat_stream({"content": "Paris."}, finish()),
        chat_stream({"content": PARIS[:9]}, {"content": PARIS[9:]}, finish()),
    )
    with WireServer(*(streamed if stream else plain)) as server:
        llm = OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url)
        agent = Agent("a", [double], llm=llm, log=False, quiet=True, stream=stream)
        assert agent.input("Go.", output=City) == City(name="Paris", people=2_000_000)
    assert len(server.requests) == 3
    for request in server.requests:
        assert request["response_format"]["json_schema"]["schema"]["properties"].keys() == {"name", "people"}
        assert [tool["function"]["name"] for tool in request["tools"]] == ["double"]


def test_an_endpoint_without_schemas_is_asked_in_words() -> None:
    refused = Answer({"error": {"message": "response_format is not supported", "type": "x"}}, status=400)
    with WireServer(refused, chat("Paris."), chat(PARIS)) as server:
        agent = Agent("a", llm=OpenAILLM("m", api_key="k", base_url=server.openai_url), log=False, quiet=True)
        assert agent.input("Go.", output=City).name == "Paris"
    assert "response_format" in server.requests[0] and "response_format" not in server.requests[2]
    assert "JSON Schema" in server.requests[1]["messages"][-1]["content"]
    assert all("JSON Schema" not in str(message["content"]) for message in agent.session["messages"])


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_answers_by_a_tool_that_is_no_tool_call(stream: bool) -> None:
    def answer(*blocks: dict[str, Any]) -> Answer:
        if not stream:
            return message(*blocks, stop="tool_use")
        events: list[dict[str, Any]] = []
        for index, block in enumerate(blocks):
            given = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            events += block_events(index, {**block, "input": {}}, given)
        return message_stream(*events, stop="tool_use")

    early = tool_use("t2", "City", people=1)
    answers = [
        answer(tool_use("t1", "double", x=2), early),  # the form is given before the tool's result is known
        answer(tool_use("t3", "City", people="many")),
        answer({**tool_use("t4", "City"), "input": json.loads(PARIS)}),
    ]
    recorder = HookRecorder()
    with WireServer(*answers) as server:
        llm = AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url)
        agent = Agent("a", [double], llm=llm, plugins=[recorder], log=False, quiet=True, stream=stream)
        assert agent.input("Go.", output=City) == City(name="Paris", people=2_000_000)
    assert recorder.names.count("before_each_tool") == 1
    calls = [one["tool_name"] for one in agent.session["trace"] if one["type"] == "tool_execution"]
    assert calls == ["double"]
    assert all(request["tool_choice"] == {"type": "any"} for request in server.requests)
    sent = json.dumps(server.requests[1]["messages"])
    assert '"t1"' in sent and '"t2"' not in sent  # a call without a result would be refused


def test_offline_fills_the_form() -> None:
    assert isinstance(Agent("a", model="offline", log=False, quiet=True).input("Where is Paris?", output=City), City)


# -- random forms --------------------------------------------------------------------------------

FORMS = int(os.environ.get("CONNECTAGENT_FORMS", "60"))
LEAVES: list[tuple[Any, Any, Any]] = [  # a type, a value of it as JSON, and what is none
    (int, 7, "seven"),
    (float, 1.5, "much"),
    (bool, True, "perhaps"),
    (str, "text \u00e9\n\"x\"", 5),
    (Literal["a", "b"], "b", "c"),
    (str | None, None, 3),
]


def random_type(random: Random, depth: int = 0) -> tuple[Any, Any, Any]:
    """A type, a value of it as JSON, and JSON that does not fit."""
    kind = random.choice(("leaf", "list", "dict", "model", "optional")) if depth < 3 else "leaf"
    if kind == "leaf":
        return random.choice(LEAVES)
    if kind == "model":
        fields = {f"f{number}": random_type(random, depth + 1) for number in range(random.randint(1, 4))}
        model = create_model(f"Model{depth}", **{name: (one[0], ...) for name, one in fields.items()})  # type: ignore[call-overload]
        good = {name: one[1] for name, one in fields.items()}
        name = random.choice(list(fields))
        return model, good, {**good, name: fields[name][2]}
    inner, good, bad = random_type(random, depth + 1)
    if kind == "optional":
        return inner | None, random.choice((None, good)), bad
    if kind == "list":
        return list[inner], [good] * random.randint(0, 3), [bad]
    return dict[str, inner], {"k": good}, {"k": bad}


@pytest.mark.parametrize("seed", range(FORMS))
def test_any_form_is_read_and_what_does_not_fit_is_sent_back(seed: int) -> None:
    random = Random(seed)
    output, good, bad = random_type(random)
    while output is str:  # for which any text is a result
        output, good, bad = random_type(random)
    wanted = TypeAdapter(output).validate_python(good)
    if not (isinstance(output, type) and issubclass(output, BaseModel)):
        good, bad = {"value": good}, {"value": bad}
    agent = made(json.dumps(bad), call("double", x=1), json.dumps(good))
    assert agent.input("Go.", output=output) == wanted
    llm: Any = agent.llm
    assert len(llm.requests) == 3 and "does not fit" in llm.requests[1].messages[-1]["content"]
    form = OutputForm.of(Form(output).model).by("strict")
    assert response_format(form, OPENAI)["json_schema"]["strict"] == (form.enforced(OPENAI) is not None)


# -- replayed ------------------------------------------------------------------------------------


def typed_record(tmp_path: Path, monkeypatch: Any, *script: Any, **options: Any) -> tuple[Path, Any]:
    """The record of one typed turn, and what its `input()` gave or raised."""
    monkeypatch.chdir(tmp_path)
    agent = Agent("typed", [people_in], llm=ScriptedLLM(*script), quiet=True, **options)
    try:
        value: Any = agent.input("Which?", output=City)
    except OutputError as error:
        value = error
    assert agent.record is not None
    return agent.record, value


def people_in(city: str) -> int:
    """How many people live in a city."""
    return len(city)


TYPED_SCRIPTS: dict[str, tuple[Any, ...]] = {
    "at once": (PARIS,),
    "with a tool": (call("people_in", city="Paris"), PARIS),
    "sent back": ("no JSON", call("people_in", city="Paris"), '{"people": "many"}', PARIS),
    "never": ("no JSON", "still none", "none"),
}


@pytest.mark.parametrize("given", ["agent", "record"])
@pytest.mark.parametrize("script", TYPED_SCRIPTS)
def test_a_typed_turn_is_replayed_as_it_was(script: str, given: str, tmp_path: Path, monkeypatch: Any) -> None:
    record, value = typed_record(tmp_path, monkeypatch, *TYPED_SCRIPTS[script])
    assert isinstance(value, OutputError) is (script == "never")
    agent = Agent("typed", [people_in], llm=ScriptedLLM(), quiet=True, log=False) if given == "agent" else None
    played = replayed(record, agent)
    assert played.same, played
    assert played.results == played.recorded_results
    assert len(played.requests) == len(TYPED_SCRIPTS[script])


def test_a_typed_turn_with_other_retries_is_replayed_from_the_record_alone(tmp_path: Path, monkeypatch: Any) -> None:
    record, value = typed_record(tmp_path, monkeypatch, *["none"] * 5, PARIS, output_retries=5)
    assert value == City(name="Paris", people=2_000_000)
    assert replayed(record).same
    fewer = Agent("typed", [people_in], llm=ScriptedLLM(), quiet=True, log=False, output_retries=1)
    assert not replayed(record, fewer).same


def test_turns_of_an_agent_with_output_are_replayed_as_text_of_the_record(tmp_path: Path, monkeypatch: Any) -> None:
    def typed(*script: Any) -> Agent:
        return Agent("typed", llm=ScriptedLLM(*script), quiet=True, output=City)

    monkeypatch.chdir(tmp_path)
    agent = typed("none", PARIS)
    agent.input("Which?")
    assert agent.record is not None
    for played in (replayed(agent.record, typed()), replayed(agent.record)):
        assert played.same and played.results == [PARIS]


def test_a_typed_turn_that_paused_is_replayed_typed_behind_the_pause(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    @before_each_tool
    def ask(tool_call: Any) -> None:
        if not tool_call.approved:
            raise Pause("sure?")

    def typed(*script: Any) -> Agent:
        return Agent("typed", [people_in], llm=ScriptedLLM(*script), quiet=True, plugins=[ask])

    agent = typed(call("people_in", city="Paris"), "none", PARIS)
    with pytest.raises(Paused) as paused:
        agent.input("Which?", output=City)
    assert agent.resume(paused.value.record, approve=True, output=City) == City(name="Paris", people=2_000_000)
    assert agent.record is not None
    played = replayed(agent.record, typed())
    assert played.same, played
    assert played.results == [PARIS]


def test_a_refused_typed_turn_is_replayed_as_its_error(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    agent = Agent("typed", llm=ScriptedLLM(LLMResponse("No.", finish_reason="refusal")), quiet=True)
    with pytest.raises(ProviderError):
        agent.input("Which?", output=City)
    assert agent.record is not None
    played = replayed(agent.record)
    assert played.same, played
