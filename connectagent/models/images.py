"""What the bytes of an image say of it: its type, its size in pixels, whether it is whole. Nothing is decoded."""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache
from typing import NamedTuple

# The type may be missing, and parameters may follow it (RFC 2397): `data:;base64,`, `data:image/png;name=a;base64,`.
DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*?;base64,", re.IGNORECASE)
_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # the markers that begin with height and width
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # the markers that have no length
_JPEG_SCAN = 0xDA


class ImageFacts(NamedTuple):
    """What is known of an image; what cannot be read is left at its default.

    Attributes:
        media_type: by the first bytes; None for what is no PNG, JPEG, GIF or WebP.
        width, height: in pixels; 0 where they are not known.
        whole: False where the end is missing.
        animated: whether it is a GIF of several pictures.
        encoded: the number of letters in base64, by which Anthropic counts.
        size: the number of bytes.
    """

    media_type: str | None = None
    width: int = 0
    height: int = 0
    whole: bool = True
    animated: bool = False
    encoded: int = 0
    size: int = 0


@lru_cache(maxsize=32)  # the whole history is sent with every request
def facts_of(url: str) -> ImageFacts | None:
    """The facts of the image in a `data:` URL; None if that holds no base64."""
    encoded = url[url.index(",") + 1 :]
    try:
        data = base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    if not data:
        return None
    return image_facts(data)._replace(encoded=len(encoded), size=len(data))


def image_facts(data: bytes) -> ImageFacts:
    """The facts of an image, from its bytes."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(data)
        if data.startswith(b"\xff\xd8"):
            return _jpeg(data)
        if data.startswith((b"GIF87a", b"GIF89a")):
            return _gif(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
    except IndexError:  # it ends inside its header
        return ImageFacts(_type_of(data), whole=False)
    return ImageFacts()


def _type_of(data: bytes) -> str:
    return {b"\x89P": "image/png", b"\xff\xd8": "image/jpeg", b"GI": "image/gif"}.get(data[:2], "image/webp")


def _number(data: bytes, at: int, count: int, order: str = "big") -> int:
    """The number in some bytes.

    Raises:
        IndexError: the data ends before.
    """
    if at + count > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + count], "little" if order == "little" else "big")


def _png(data: bytes) -> ImageFacts:
    """Chunks follow each other: length, name, content, checksum. The last is IEND."""
    width = _number(data, 16, 4)
    height = _number(data, 20, 4)
    at = 8
    while at + 12 <= len(data):
        if data[at + 4 : at + 8] == b"IEND":
            return ImageFacts("image/png", width, height)
        at += 12 + _number(data, at, 4)
    return ImageFacts("image/png", width, height, whole=False)


def _jpeg(data: bytes) -> ImageFacts:
    """Segments follow each other: marker, length, content. Behind the first scan an end marker must come."""
    width = 0
    height = 0
    at = 2
    while True:
        while _number(data, at, 1) != 0xFF:  # some writers leave bytes between segments
            at += 1
        while _number(data, at, 1) == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker in _JPEG_ALONE:
            continue
        if marker in _JPEG_SIZES:
            height = _number(data, at + 3, 2)
            width = _number(data, at + 5, 2)
        if marker == _JPEG_SCAN:
            return ImageFacts("image/jpeg", width, height, whole=data.rfind(b"\xff\xd9") > at)
        if marker == 0xD9:  # the end, before any picture
            return ImageFacts("image/jpeg", width, height, whole=False)
        at += _number(data, at, 2)


def _gif(data: bytes) -> ImageFacts:
    """Blocks follow each other: `!` is an extension, `,` a picture, `;` the end."""
    width = _number(data, 6, 2, "little")
    height = _number(data, 8, 2, "little")
    at = 13 + _colours(data[10])
    pictures = 0
    try:
        while (kind := _number(data, at, 1)) in b"!,":
            if kind == ord("!"):
                at = _behind_blocks(data, at + 2)
                continue
            pictures += 1
            at = _behind_blocks(data, at + 11 + _colours(_number(data, at + 9, 1)))
    except IndexError:
        return ImageFacts("image/gif", width, height, whole=False, animated=pictures > 1)
    return ImageFacts("image/gif", width, height, whole=pictures > 0, animated=pictures > 1)


def _colours(flags: int) -> int:
    """The number of bytes of a table of colours."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _behind_blocks(data: bytes, at: int) -> int:
    """Where the blocks that begin at a place end: each has its length in front, and the last has none."""
    while length := _number(data, at, 1):
        at += 1 + length
    return at + 1


def _webp(data: bytes) -> ImageFacts:
    whole = 8 + _number(data, 4, 4, "little") <= len(data) + 1  # some writers forget the last byte, which only fills
    kind = data[12:16]
    width = 0
    height = 0
    if kind == b"VP8X":
        width = 1 + _number(data, 24, 3, "little")
        height = 1 + _number(data, 27, 3, "little")
    elif kind == b"VP8 ":
        width = _number(data, 26, 2, "little") & 0x3FFF
        height = _number(data, 28, 2, "little") & 0x3FFF
    elif kind == b"VP8L":
        bits = _number(data, 21, 4, "little")
        width = 1 + (bits & 0x3FFF)
        height = 1 + (bits >> 14 & 0x3FFF)
    return ImageFacts("image/webp", width, height, whole=whole)
