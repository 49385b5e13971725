"""The images and documents of a conversation as a provider takes them: adapted, or replaced by a text that says why."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from connectagent.data import Message
from connectagent.models.content import Part, as_part, image_problem
from connectagent.models.images import DATA_URL, ImageFacts, facts_of
from connectagent.models.limits import Limits
from connectagent.models.notes import note

_PDF = re.compile(r"data:application/pdf(?:;[^;,]*)*;base64,", re.IGNORECASE)
_PAGES = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_ENCRYPTED = re.compile(rb"/Encrypt\s+\d+\s+\d+\s+R")
_IMAGES = ("image_url", "input_image")
_DOCUMENTS = ("file", "input_file", "document")
# Older attachments go in steps of a tenth of what is taken, so that the request's beginning stays cached for a while.
_STEP = 10


class _Attachment(NamedTuple):
    """An image or a document of a conversation: where it stands, and its size in letters of base64."""

    message: int
    part: int
    size: int
    is_image: bool
    facts: ImageFacts | None


def within_limits(messages: Sequence[Message], provider: str, limits: Limits) -> list[Message]:
    """The messages with what the provider takes; those that need no change are the same objects.

    A wrong media type is corrected. An image or document that cannot be sent becomes a text that says so. Of more
    than the provider takes in one request, the newest stay.
    """
    made, attached = list(messages), list[_Attachment]()
    for at, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list | tuple) and message.get("role") != "assistant":
            parts = [_fitted(as_part(item) or item, provider, limits, message) for item in content]
            if any(part is not item for part, item in zip(parts, content, strict=True)):
                made[at] = {**message, "content": parts}
            attached += _attachments(at, parts)
    for gone, why in _too_many(attached, provider, limits).items():
        message = made[gone.message]
        parts = list(message["content"] or ())
        kind = "an image" if gone.is_image else "a document"
        parts[gone.part] = _left_out(f"{kind} is left out: {why}", message)
        made[gone.message] = {**message, "content": parts}
    return made


def _left_out(text: str, message: Message) -> Part:
    """The part that stands for one that is left out, which the running call notes."""
    whose = f"the result of {message.get('tool_call_id')}" if message.get("role") == "tool" else "a message of the user"
    note(f"{text} (in {whose})")
    return {"type": "text", "text": f"[{text}]"}


def _fitted(part: object, provider: str, limits: Limits, message: Message) -> Any:
    """A part as it can be sent: itself, one with another media type, or a text."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind in _IMAGES:
        url = _url_of(part)
        if not isinstance(url, str) or not DATA_URL.match(url) or (facts := facts_of(url)) is None:
            return part  # the wires name what is neither data nor a web address
        if problem := _image_problem(url, facts, provider, limits):
            return _left_out(f"an image {problem}", message)
        return _with_type(part, url, str(facts.media_type), message)
    if kind in _DOCUMENTS and (problem := _document_problem(part, provider, limits)):
        return _left_out(f"the file {_name_of(part)!r} {problem}", message)
    return part


def _url_of(part: Part) -> Any:
    image = part.get("image_url")
    return image.get("url") if isinstance(image, dict) else image


def _image_problem(url: str, facts: ImageFacts, provider: str, limits: Limits) -> str | None:
    """Why an image is left out, in words that go on behind "an image"; None if it can be sent."""
    if facts.media_type is None:
        return f"{image_problem(url) or 'that is no PNG, JPEG, GIF or WebP'} is left out"
    if not facts.whole:
        return f"of type {facts.media_type} is left out: its end is missing"
    if facts.media_type not in limits.image_types:
        return f"of type {facts.media_type} is left out: {provider} takes {', '.join(limits.image_types)}"
    if facts.animated and not limits.animated:
        return f"is left out: {provider} takes no animated GIF"
    size = facts.encoded if limits.counts_base64 else facts.size
    if limits.image_bytes is not None and size > limits.image_bytes:
        how = " in base64" if limits.counts_base64 else ""
        return f"of {size:,} bytes{how} is left out: {provider} takes at most {limits.image_bytes:,}"
    longer = max(facts.width, facts.height)
    if limits.image_pixels is not None and longer > limits.image_pixels:
        return _too_wide(facts, f"{provider} takes at most {limits.image_pixels} pixels a side")
    return None


def _too_wide(facts: ImageFacts, why: str) -> str:
    return f"of {facts.width} x {facts.height} pixels is left out: {why}"


def _with_type(part: Part, url: str, media_type: str, message: Message) -> Part:
    """An image part whose URL names the type that the bytes have; the part itself if it does."""
    found = DATA_URL.match(url)
    begin = f"data:{media_type};base64,"
    if found is None or found[0] == begin:
        return part
    if found[1] != media_type:
        note(f"an image is sent as {media_type}, which its bytes are, not as {found[1][:40] or 'one of no type'}")
    right = f"{begin}{url[found.end() :]}"
    image = part["image_url"]
    return {**part, "image_url": {**image, "url": right} if isinstance(image, dict) else right}


def _name_of(part: Part) -> str:
    inner = part.get("file") if isinstance(part.get("file"), dict) else part
    return str((inner or {}).get("filename") or (inner or {}).get("title") or "document")


def _pdf_of(part: Part) -> str | None:
    """The PDF that a part holds, in base64; None for another document, or one that is named by an address."""
    if part["type"] == "document":
        source = part.get("source")
        is_pdf = isinstance(source, dict) and source.get("media_type") == "application/pdf"
        return str(source.get("data") or "") if is_pdf and isinstance(source, dict) else None
    inner = part.get("file") if isinstance(part.get("file"), dict) else part
    data = inner.get("file_data") if isinstance(inner, dict) else None
    found = _PDF.match(data) if isinstance(data, str) else None
    return None if found is None else str(data)[found.end() :]


def _document_problem(part: Part, provider: str, limits: Limits) -> str | None:
    """Why a document is left out, in words that go on behind its name; None if it can be sent."""
    encoded = _pdf_of(part)
    if encoded is None:
        return None
    if limits.pdf_bytes is not None and len(encoded) * 3 // 4 > limits.pdf_bytes:
        return f"of {len(encoded) * 3 // 4:,} bytes is left out: {provider} takes at most {limits.pdf_bytes:,}"
    is_pdf, locked, pages = _pdf_facts(encoded)
    if not is_pdf:
        return "is left out: it is said to be a PDF, and is none"
    if locked:
        return f"is left out: it is encrypted, which {provider} cannot read"
    if limits.pdf_pages is not None and pages > limits.pdf_pages:
        return f"of {pages} pages is left out: {provider} takes at most {limits.pdf_pages}"
    return None


@lru_cache(maxsize=16)
def _pdf_facts(encoded: str) -> tuple[bool, bool, int]:
    """Whether a PDF is one, whether it is encrypted, and how many pages can be counted without unpacking it."""
    try:
        data = base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        return False, False, 0
    return b"%PDF-" in data[:1024], _ENCRYPTED.search(data) is not None, len(_PAGES.findall(data))


def _attachments(at: int, parts: list[Any]) -> list[_Attachment]:
    """The images and documents of a message that are sent."""
    found: list[_Attachment] = []
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _IMAGES:
            url = _url_of(part)
            facts = facts_of(url) if isinstance(url, str) and DATA_URL.match(url) else None
            found.append(_Attachment(at, number, 0 if facts is None else facts.encoded, True, facts))
        elif kind in _DOCUMENTS:
            found.append(_Attachment(at, number, len(_pdf_of(part) or ""), False, None))
    return found


def _too_many(attached: list[_Attachment], provider: str, limits: Limits) -> dict[_Attachment, str]:
    """The attachments that one request cannot hold, each with the reason."""
    gone = _above_count(attached, provider, limits)
    gone |= _too_wide_for_many([one for one in attached if one not in gone], provider, limits)
    return gone | _above_size([one for one in attached if one not in gone], provider, limits)


def _above_count(attached: list[_Attachment], provider: str, limits: Limits) -> dict[_Attachment, str]:
    most = limits.attachments
    if most is None or len(attached) <= most:
        return {}
    step = max(most // _STEP, 1)
    surplus = -(-(len(attached) - most) // step) * step
    why = f"{provider} takes at most {most} images and documents in a request, and newer ones follow"
    return dict.fromkeys(attached[:surplus], why)


def _too_wide_for_many(attached: list[_Attachment], provider: str, limits: Limits) -> dict[_Attachment, str]:
    many, pixels = limits.many_images, limits.many_pixels
    if many is None or pixels is None or sum(one.is_image for one in attached) <= many:
        return {}
    gone: dict[_Attachment, str] = {}
    for one in attached:
        if one.facts is not None and max(one.facts.width, one.facts.height) > pixels:
            size = f"it has {one.facts.width} x {one.facts.height} pixels"
            gone[one] = f"{size}, and of more than {many} images {provider} takes at most {pixels} pixels a side"
    return gone


def _above_size(attached: list[_Attachment], provider: str, limits: Limits) -> dict[_Attachment, str]:
    most = limits.attached_bytes
    surplus = 0 if most is None else sum(one.size for one in attached) - most
    if most is None or surplus <= 0:
        return {}
    gone: dict[_Attachment, str] = {}
    why = f"{provider} takes at most {most:,} bytes of images and documents in a request"
    surplus += most // _STEP
    for one in attached[:-1]:
        if surplus > 0 and one.size:
            gone[one] = f"{why}, and newer ones follow"
            surplus -= one.size
    if attached[-1].size > most:
        gone[attached[-1]] = why
    return gone
