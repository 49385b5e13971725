"""Files in prompts and results: what each wire sends of them, and what it refuses."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from wire_server import WireServer, chat, message, response, tool_use

from connectagent import Agent, File, Image, ProviderError, llm_do
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM
from connectagent.models.responses import ResponsesLLM

PDF = b"%PDF-1.4 a report"
PDF_URL = "data:application/pdf;base64," + base64.b64encode(PDF).decode()
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
ANSWERS = {"openai": chat("ok"), "anthropic": message("ok"), "openai-responses": response("ok")}
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII=")


def llm_at(server: WireServer, provider: str) -> Any:
    if provider == "anthropic":
        return AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url, options={"cache_control": False})
    if provider == "openai-responses":
        return ResponsesLLM("gpt-4o", api_key="k", base_url=server.openai_url)
    return OpenAILLM("gpt-4o", provider=provider, api_key="k", base_url=server.openai_url)


def sent(provider: str, *files: Any) -> Any:
    """The parts of the user's message that the provider got, behind its text."""
    with WireServer(ANSWERS.get(provider, chat("ok"))) as server:
        Agent("a", llm=llm_at(server, provider), log=False, quiet=True).input(["Read this.", *files])
        body = server.requests[0]
    return (body.get("messages") or body["input"])[-1]["content"][1:]


def test_a_pdf_is_sent_as_each_wire_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(PDF)
    for file in (File(path), File(str(path)), File(PDF, name="report.pdf")):
        assert sent("openai", file) == [{"type": "file", "file": {"filename": "report.pdf", "file_data": PDF_URL}}]
    data = PDF_URL.partition(",")[2]
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    assert sent("anthropic", file) == [{"type": "document", "source": source, "title": "report.pdf"}]
    told = {"filename": "report.pdf", "file_data": PDF_URL}
    assert sent("openai-responses", file) == [{"type": "input_file", **told}]
    assert sent("openrouter", file) == sent("openai", file)
    assert sent("mistral", file) == [
        {"type": "document_url", "document_url": PDF_URL, "document_name": "report.pdf"}
    ]  # fmt: skip
    assert sent("perplexity", file) == [{"type": "file_url", "file_url": {"url": data}, "file_name": "report.pdf"}]


@pytest.mark.parametrize("provider", ["openai", "groq", "ollama", "mistral"])
def test_a_text_is_text_on_chat_completions(provider: str) -> None:
    assert sent(provider, File(b"a,b\n1,2\n", name="table.csv")) == [
        {"type": "text", "text": '<file name="table.csv">\na,b\n1,2\n\n</file>'}
    ]


def test_a_text_is_a_document_elsewhere() -> None:
    file = File("ä = 1".encode(), name="notes.txt")
    source = {"type": "text", "media_type": "text/plain", "data": "ä = 1"}
    assert sent("anthropic", file) == [{"type": "document", "source": source, "title": "notes.txt"}]
    assert sent("openai-responses", file)[0]["file_data"].startswith("data:text/plain;base64,")


@pytest.mark.parametrize(
    ("provider", "file", "words"),
    [
        ("groq", File(PDF, name="report.pdf"), "takes no files but texts, and this one cannot be sent: 'report.pdf'"),
        ("deepseek", File(PDF), "deepseek takes no files"),
        ("openai", File(b"PK", DOCX, "a.docx"), "openai takes PDFs and texts as files, not application/vnd"),
        ("anthropic", File(b"PK", DOCX, "a.docx"), "anthropic takes PDFs and texts as files, not application/vnd"),
        ("openai", File(b"\xff\xfe", "text/plain", "a.txt"), "the file 'a.txt' is text/plain, but no UTF-8 text"),
    ],
)
def test_what_a_provider_cannot_take_is_refused_before_anything_is_sent(provider: str, file: Any, words: str) -> None:
    with WireServer(ANSWERS.get(provider, chat("ok"))) as server:
        agent = Agent("a", llm=llm_at(server, provider), log=False, quiet=True)
        with pytest.raises(ProviderError) as caught:
            agent.input(["Read this.", file])
        assert server.requests == []
        assert agent.input("Go on without it.") == "ok"  # the conversation has it still, the requests do not
    assert caught.value.kind == "bad_request" and words in str(caught.value)
    (body,) = server.requests
    assert "[a file is left out: " in str(body["messages"][0]["content"])
    assert any(part["type"] == "file" for part in agent.session["messages"][0]["content"])


def test_responses_takes_any_document() -> None:
    assert sent("openai-responses", File(b"PK", DOCX, "a.docx"))[0]["filename"] == "a.docx"


def test_parts_that_name_a_file_are_passed_on() -> None:
    by_id = {"type": "file", "file": {"file_id": "file-1"}}
    by_url = {"type": "file", "file": {"file_data": "https://example.com/a.pdf", "filename": "a.pdf"}}
    assert sent("openai", by_id) == [by_id]
    assert sent("openai-responses", by_id, by_url) == [
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
    ]
    assert [part["source"] for part in sent("anthropic", by_id, by_url)] == [
        {"type": "file", "file_id": "file-1"},
        {"type": "url", "url": "https://example.com/a.pdf"},
    ]


@pytest.mark.parametrize("provider", ["openai", "openai-responses", "anthropic"])
@pytest.mark.parametrize("file", [{}, None, {"file_data": 5}, {"filename": "a.pdf", "file_data": "no URL"}])
def test_a_part_that_says_of_no_file_where_it_is_is_left_out(provider: str, file: Any) -> None:
    (part,) = sent(provider, {"type": "file", "file": file})
    assert part["type"] in ("text", "input_text")
    assert part["text"].startswith("[a file that is given by no data, id or URL is left out: ")


def test_a_picture_is_an_image_and_what_nobody_knows_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "dot.png"
    path.write_bytes(PIXEL)
    assert File(path).part()["type"] == "image_url"
    assert File(b"plain words").part()["file"]["filename"] == "file.txt"
    assert File(PDF).part()["file"]["filename"] == "document.pdf"
    with pytest.raises(ValueError, match="name its media_type"):
        File(b"\xff\x00\xfe").part()


def test_a_tool_returns_a_file() -> None:
    def fetch() -> File:
        """Fetch the report."""
        return File(PDF, name="report.pdf")

    def missing() -> list[Any]:
        """Fetch another."""
        return [File("no/such.pdf"), "sorry"]

    asks = chat(calls=[("c1", "fetch", "{}"), ("c2", "missing", "{}")], finish="tool_calls")
    with WireServer(asks, chat("Read.")) as server:
        assert Agent("a", [fetch, missing], llm=llm_at(server, "openai"), log=False, quiet=True).input("Go.") == "Read."
    found = server.requests[1]["messages"][2:]
    assert found[0]["content"] == "(The file is in the next user message.)"
    assert found[1]["content"].startswith("(a file that cannot be read: Error: FileNotFoundError")
    part = {"type": "file", "file": {"filename": "report.pdf", "file_data": PDF_URL}}
    assert found[2] == {"role": "user", "content": [part]}
    with WireServer(message(tool_use("t1", "fetch")), message("Read.")) as server:
        assert Agent("a", [fetch], llm=llm_at(server, "anthropic"), log=False, quiet=True).input("Go.") == "Read."
    assert server.requests[1]["messages"][2]["content"][0]["content"][0]["type"] == "document"


def test_llm_do_takes_a_file() -> None:
    with WireServer(response("A report.")) as server:
        assert llm_do(["What is it?", File(PDF)], llm=llm_at(server, "openai-responses")) == "A report."
        assert llm_do(File(PDF), llm=llm_at(server, "openai-responses")) == "A report."
    assert server.requests[1]["input"][0]["content"][0]["type"] == "input_file"


@pytest.mark.parametrize("provider", ["openai", "anthropic", "openai-responses", "gemini"])
@pytest.mark.parametrize(
    "begin",
    [
        "data:;base64,",
        "data:application/octet-stream;base64,",
        "data:image/jpeg;base64,",
        "data:image/jpg;base64,",
        "data:image/*;base64,",
        "DATA:IMAGE/PNG;BASE64,",
        "data:image/png;charset=utf-8;base64,",
        "data:image/png;name=a.png;x=y;base64,",
    ],
)
def test_the_type_of_an_image_in_a_url_is_that_of_its_bytes(begin: str, provider: str) -> None:
    data = base64.b64encode(PIXEL).decode()
    given = [{"type": "image_url", "image_url": {"url": begin + data}}, Image(begin + data)]
    right = f"data:image/png;base64,{data}"
    source = {"type": "base64", "media_type": "image/png", "data": data}
    parts: dict[str, Any] = {
        "anthropic": {"type": "image", "source": source},
        "openai-responses": {"type": "input_image", "image_url": right, "detail": "auto"},
    }
    assert sent(provider, *given) == [parts.get(provider, {"type": "image_url", "image_url": {"url": right}})] * 2
