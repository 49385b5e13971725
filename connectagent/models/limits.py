"""What providers take in a request, as data: by their documents, and by reports of what they refused.

A number that is not here is not known, or depends on the model: what a provider refuses all the same is replaced by the
loop (`loop/refused.py`). `docs/models.md` shows this table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one provider takes. None is no limit that is known.

    Args:
        image_types: the types of images.
        animated: whether a GIF may have several pictures.
        image_bytes: the size of one image.
        counts_base64: whether that size is counted in letters of base64.
        image_pixels: the longer side of one image.
        many_images: from more images than so many on, `many_pixels` is the limit of the longer side.
        many_pixels: see `many_images`.
        attachments: how many images and documents a request may hold.
        attached_bytes: their size together, in letters of base64.
        pdf_bytes: the size of one PDF.
        pdf_pages: the pages of one PDF.
        tools: how many tools a request may hold.
        tool_description: how many characters the description of a tool may have.
        property_names: what names of properties look like.
        sources: where all this is said.
    """

    image_types: tuple[str, ...] = IMAGE_TYPES
    animated: bool = True
    image_bytes: int | None = None
    counts_base64: bool = False
    image_pixels: int | None = None
    many_images: int | None = None
    many_pixels: int | None = None
    attachments: int | None = None
    attached_bytes: int | None = None
    pdf_bytes: int | None = None
    pdf_pages: int | None = None
    tools: int | None = None
    tool_description: int | None = None
    property_names: re.Pattern[str] | None = None
    sources: tuple[str, ...] = ()


GENERAL = Limits()

_ANTHROPIC = Limits(
    image_bytes=5 * _MIB,  # "image exceeds 5 MB maximum: 8259148 bytes > 5242880 bytes"
    counts_base64=True,
    image_pixels=8000,
    many_images=20,  # "... exceed max allowed size for many-image requests: 2000 pixels"
    many_pixels=2000,
    attachments=100,  # "too many images and documents: 104 + 1 > 100"
    attached_bytes=30 * _MIB,  # a request may have 32 MB; texts and tools take some of it
    pdf_bytes=32 * _MIB,
    pdf_pages=600,  # 100 for models with a small context window: "A maximum of 100 PDF pages may be provided."
    property_names=re.compile(r"[a-zA-Z0-9_.-]{1,64}"),  # reported for the top of a schema; kept at every level
    sources=(
        "https://platform.claude.com/docs/en/build-with-claude/vision",
        "https://platform.claude.com/docs/en/build-with-claude/pdf-support",
        "https://github.com/anthropics/claude-code/issues/19631",  # 5 MB
        "https://github.com/anthropics/claude-code/issues/13480",  # 2000 pixels
        "https://github.com/anthropics/claude-code/issues/23392",  # 100 images and documents
        "https://github.com/anthropics/claude-code/issues/6231",  # pages of PDFs
        "https://github.com/beautyfree/appstore-connect-mcp/issues/2",  # names of properties
        "https://github.com/aws-solutions-library-samples/"
        "accelerated-intelligent-document-processing-on-aws/issues/709",  # at the top only
    ),
)
_OPENAI = Limits(
    animated=False,
    image_bytes=20 * _MIB,
    attachments=500,
    attached_bytes=50 * _MIB * 4 // 3,
    pdf_bytes=50 * _MIB,
    tools=128,  # "Invalid 'tools': array too long. Expected an array with maximum length 128"
    sources=(
        "https://platform.openai.com/docs/guides/images-vision",
        "https://platform.openai.com/docs/guides/pdf-files",
        "https://github.com/STranslate/STranslate/issues/277",  # types of images
        "https://github.com/vishalmysore/Tools4AI/issues/16",  # tools
    ),
)
_OPENAI_CHAT = replace(
    _OPENAI,
    tool_description=1024,  # "Expected a string with maximum length 1024, but got a string with length 1103 instead."
    sources=(*_OPENAI.sources, "https://github.com/getsentry/sentry-mcp/issues/106"),
)
_XAI = Limits(
    image_types=("image/jpeg", "image/png"),
    image_bytes=10 * _MIB,
    sources=("https://docs.x.ai/docs/guides/image-understanding",),
)
_GROQ = Limits(attached_bytes=4 * _MIB, sources=("https://console.groq.com/docs/vision",))

LIMITS = {
    "anthropic": _ANTHROPIC,
    "openai": _OPENAI_CHAT,
    "openai-responses": _OPENAI,
    "xai": _XAI,
    "groq": _GROQ,
}
_ANOTHER_SERVERS = ("openai", "openai-responses")


def limits_of(provider: str, own_address: bool) -> Limits:
    """The limits of a provider.

    Args:
        provider: its name.
        own_address: whether the user has named the address. On OpenAI's wire that is often another server, which has
            other limits.
    """
    if own_address and provider in _ANOTHER_SERVERS:
        return GENERAL
    return LIMITS.get(provider, GENERAL)
