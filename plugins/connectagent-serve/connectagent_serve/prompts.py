"""What a user says in each protocol, as a prompt of the agent: a text, or a list of texts, images and files."""

from __future__ import annotations

import base64
from typing import Any

from connectagent_serve.refusals import Refused

_OWN = ("tools", "functions", "response_format")  # what a client of OpenAI may give, and one of an agent may not
_TAKEN = {"text": "text", "image_url": "image_url", "file": "file"}
_IMAGES = ("data:image/", "https://", "http://")


def prompt_of(content: Any, name: str) -> Any:
    """A prompt from the content of a message of OpenAI.

    Args:
        content: a text, or a list of parts of the types `text`, `image_url` and `file`.
        name: of the field, for errors.

    Raises:
        Refused: it is none of these.
    """
    if isinstance(content, str) and content.strip():
        return content
    if isinstance(content, list) and content and all(map(_fits, content)):
        texts = [part["text"] for part in content if part["type"] == "text"]
        if len(texts) < len(content) or any(text.strip() for text in texts):
            return "\n".join(texts) if len(texts) == len(content) else content
    raise Refused(
        400,
        f"{name} is a text that is not empty, or a list of parts: text, image_url with a data: or https: URL, "
        "and file with file_data, a data: URL",
    )


def _fits(part: Any) -> bool:
    if not isinstance(part, dict) or part.get("type") not in _TAKEN:
        return False
    given = part.get(_TAKEN[part["type"]])
    if part["type"] == "text":
        return isinstance(given, str)
    if not isinstance(given, dict):
        return False
    if part["type"] == "image_url":
        return isinstance(given.get("url"), str) and given["url"].lower().startswith(_IMAGES)
    return str(given.get("file_data", "")).startswith("data:")


def prompt_of_openai(body: dict[str, Any], is_session: bool) -> Any:
    """The prompt in a request of OpenAI's.

    Args:
        body: of the request.
        is_session: whether the request names a session.

    Raises:
        Refused: it has none, or asks for what an agent does not do.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise Refused(400, "messages is a list of objects that is not empty")
    if named := [name for name in _OWN if body.get(name)] + ["n"] * (body.get("n") not in (None, 1)):
        raise Refused(400, f"the agent has its own tools and output, and one answer: leave out {', '.join(named)}")
    if messages[-1].get("role") != "user":
        raise Refused(400, "the last message is the user's")
    if not is_session and len(messages) > 1:
        raise Refused(400, "a conversation needs the header X-Session-Id; the agent has its own instructions")
    return prompt_of(messages[-1].get("content"), "content")


def prompts_of_agui(messages: Any) -> list[Any]:
    """The prompts of a thread of AG-UI, one for each turn: what a user sends again, unanswered, is one.

    Raises:
        Refused: the last one is empty, or has something that models do not take.
    """
    prompts: list[Any] = []
    last = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    is_answered = True
    for at, message in enumerate(messages):
        if message.role == "assistant" and message.content:
            is_answered = True
        elif message.role == "user":
            prompt = _prompt(message.content) if at == last else _known(message.content)
            if is_answered or prompt != prompts[-1]:
                prompts.append(prompt)
            is_answered = False
    return prompts


def _prompt(content: Any) -> Any:
    return prompt_of([_part(part) for part in content] if isinstance(content, list) else content, "content")


def _known(content: Any) -> Any:
    """An earlier prompt; what has been refused then counts too."""
    try:
        return _prompt(content)
    except Refused:
        return None


def known_part(part: Any) -> Any:
    """A part of a tool's result of AG-UI; what models do not take there is named in a text."""
    try:
        made = _part(part)
        if made["type"] in ("text", "image_url") and _fits(made):
            return made
    except Refused:
        pass
    return {"type": "text", "text": f"({part.type}: left out, as a result has texts and images)"}


def _part(part: Any) -> Any:
    if part.type == "text":
        return {"type": "text", "text": part.text}
    source = getattr(part, "source", None)
    if part.type in ("image", "document") and source is not None and source.type in ("data", "url"):
        url = f"data:{source.mime_type};base64,{source.value}" if source.type == "data" else source.value
        return _media(url, str(source.mime_type), part.type == "image", None)
    raise Refused(400, f"content has a part of the type {part.type}; it may have text, image and document with bytes")


def _media(url: str, media_type: str, is_image: bool, name: str | None) -> dict[str, Any]:
    if is_image or media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    name = name or ("document.pdf" if media_type == "application/pdf" else "file.txt")
    return {"type": "file", "file": {"filename": name, "file_data": url}}


def prompt_of_a2a(parts: Any, texts: list[str]) -> Any:
    """A prompt from the parts of a message of A2A.

    Args:
        parts: its parts.
        texts: its texts, and its objects as JSON.

    Raises:
        Refused: there is nothing that a model takes.
    """
    said = [{"type": "text", "text": text} for text in texts]
    media = [
        _media(_url(part), part.media_type, part.media_type.startswith("image/"), part.filename or None)
        for part in parts
        if part.WhichOneof("content") in ("raw", "url")
    ]
    return prompt_of([*said, *media], "a message")


def _url(part: Any) -> str:
    if part.WhichOneof("content") == "url":
        return str(part.url)
    return f"data:{part.media_type};base64,{base64.b64encode(part.raw).decode()}"
