"""Files in messages, as each wire takes them: a PDF, a text, or what only some providers can read."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple

from connectagent.models.content import CannotSend

Part = dict[str, Any]

PDF = "application/pdf"
_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*?;base64,", re.IGNORECASE)
_TEXTS = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml|x-yaml|toml|javascript|x-sh|sql|csv)", re.IGNORECASE)
# Their chat completions have no part for a file.
_NO_FILES = {"groq", "deepseek", "together", "xai", "fireworks", "cerebras", "ollama", "lmstudio"}
# OpenAI's take PDFs only; so do the others that follow them.
_ANY_DOCUMENT = {"mistral", "perplexity"}


class _Inline(NamedTuple):
    """A file that is in the message itself."""

    name: str
    media_type: str
    data: str
    part: Part

    @property
    def is_text(self) -> bool:
        return _TEXTS.fullmatch(self.media_type) is not None

    def text(self) -> str:
        try:
            return base64.b64decode(self.data).decode("utf-8-sig")
        except (binascii.Error, UnicodeDecodeError) as error:
            what = f"the file {self.name!r} is {self.media_type}, but no UTF-8 text: {error}"
            raise CannotSend(what, self.part) from None


def left_out(part: Part) -> str | None:
    """What stands for a `file` part that says of no file what is in it or where it is; None for one that does."""
    file = _file_of(part)
    given = file.get("file_data")
    if file.get("file_id") or (isinstance(given, str) and given.startswith(("data:", "https://", "http://"))):
        return None
    return f"[a file that is given by no data, id or URL is left out: {file.get('filename') or '?'}]"


def _file_of(part: Part) -> dict[str, Any]:
    file = part.get("file")
    return file if isinstance(file, dict) else {}


def _inline(part: Part) -> _Inline | None:
    """The file of a `file` part; None where it is named by an id or a URL."""
    file = _file_of(part)
    data = str(file.get("file_data") or "")
    found = _DATA_URL.match(data)
    if found is None:
        return None
    return _Inline(str(file.get("filename") or "file"), found.group(1).lower(), data[found.end() :], part)


def for_chat(part: Part, provider: str) -> Part:
    """A `file` part as a provider's chat completions take it; a text file becomes text, which all of them take.

    Raises:
        CannotSend: the provider takes no such file.
    """
    if (note := left_out(part)) is not None:
        return {"type": "text", "text": note}
    file = _inline(part)
    if file is not None and file.is_text:
        return {"type": "text", "text": f'<file name="{file.name}">\n{file.text()}\n</file>'}
    name = file.name if file else _file_of(part).get("filename") or _file_of(part).get("file_id") or "?"
    if provider in _NO_FILES:
        raise CannotSend(f"{provider} takes no files but texts, and this one cannot be sent: {name!r}", part)
    if file is None:
        return part
    if file.media_type != PDF and provider not in _ANY_DOCUMENT:
        hint = "; 'openai-responses/<model>' takes more" if provider == "openai" else ""
        raise CannotSend(f"{provider} takes PDFs and texts as files, not {file.media_type}: {name!r}{hint}", part)
    if provider == "mistral":
        url = f"data:{file.media_type};base64,{file.data}"
        return {"type": "document_url", "document_url": url, "document_name": file.name}
    if provider == "perplexity":
        return {"type": "file_url", "file_url": {"url": file.data}, "file_name": file.name}
    return part


def for_responses(part: Part) -> Part:
    """A `file` part as the Responses API takes it: of any type."""
    if (note := left_out(part)) is not None:
        return {"type": "input_text", "text": note}
    file = _file_of(part)
    sent = {key: file[key] for key in ("file_id", "filename", "file_data") if file.get(key)}
    if str(sent.get("file_data")).startswith(("https://", "http://")):
        sent = {"file_url": sent["file_data"]}  # which may have no name
    return {"type": "input_file", **sent}


def for_anthropic(part: Part) -> Part:
    """A `file` part as a document block.

    Raises:
        CannotSend: it is neither a PDF nor a text.
    """
    if (note := left_out(part)) is not None:
        return {"type": "text", "text": note}
    inline = _inline(part)
    file = _file_of(part)
    if inline is None:
        url = str(file.get("file_data") or "")
        if url.startswith(("https://", "http://")):
            return {"type": "document", "source": {"type": "url", "url": url}}
        return {"type": "document", "source": {"type": "file", "file_id": file.get("file_id")}}
    if inline.is_text:
        source = {"type": "text", "media_type": "text/plain", "data": inline.text() or "(empty)"}
    elif inline.media_type == PDF:
        source = {"type": "base64", "media_type": PDF, "data": inline.data}
    else:
        raise CannotSend(f"anthropic takes PDFs and texts as files, not {inline.media_type}: {inline.name!r}", part)
    return {"type": "document", "source": source, **({"title": inline.name} if file.get("filename") else {})}
