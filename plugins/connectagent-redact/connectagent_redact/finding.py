"""Finds personal data and secrets in a text, also where letters are written otherwise."""

from __future__ import annotations

import html
import importlib
import pkgutil
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

_EMAIL = re.compile(
    r"""(?:[\w.!#$&'*+/=?^`{|}~-]{1,64}|"[^"\n]{1,64}")@(?:[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}|\[[\da-fA-F:.]{3,45}\])"""
)
_IBAN = re.compile(r"(?<![A-Z0-9])[A-Z]{2}\d{2}(?:[ \t-]{0,2}[A-Z0-9]){11,30}", re.IGNORECASE)
_CARD = re.compile(r"(?<![\d.])(?=([3-6]\d{3}(?:[ \t-]{0,2}\d){9,15}))")  # other digits may stand before and after it
_CARD_END = re.compile(r"(?<=\d)(?!\.?\d)")
_SSN = re.compile(r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])")
_PEM = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.{0,20000}?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)"
_PRIVATE_KEY = re.compile(_PEM, re.DOTALL)
_WRITTEN_OTHERWISE = re.compile(
    r"\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\x[0-9a-fA-F]{2}|%u[0-9a-fA-F]{4}|%[0-9a-fA-F]{2}"
    r"|&(?:#\d{1,8};?|#[xX][0-9a-fA-F]{1,8};?|commat;|period;)"
)
_BLANK = "\u115f\u1160\u2800"  # letters and signs that show nothing
# Of detect-secrets: those left out look for words beside a value, or for any text that looks random.
_LEFT_OUT = ("base", "high_entropy_strings", "keyword", "ip_public", "private_key", "basic_auth")


class Found(NamedTuple):
    """Something in a text.

    Args:
        start, end: where it is.
        kind: `EMAIL`, `PHONE`, `IBAN`, `CARD`, `SSN`, `SECRET`, or a kind of presidio's.
        value: it, in plain letters.
    """

    start: int
    end: int
    kind: str
    value: str


def find(text: str, kinds: frozenset[str], region: str | None = None, presidio: tuple[str, ...] = ()) -> list[Found]:
    """What is to be redacted in a text, in its order; nothing overlaps.

    Args:
        text: the text.
        kinds: which kinds to look for.
        region: the country of phone numbers without `+`, such as `DE`.
        presidio: kinds that presidio looks for, such as `PERSON`.
    """
    plain, places = _plain(text)
    found = sorted(_all(plain, kinds, region, presidio), key=lambda one: (one.start, -one.end))
    kept: list[Found] = []
    end = 0
    for one in found:
        if one.start >= end:
            end = one.end
            kept.append(one._replace(start=places[one.start], end=places[one.end]) if places else one)
    return kept


def _plain(text: str) -> tuple[str, list[int]]:
    """A text in plain letters, and where each of them is in the text; no places where it is the text itself.

    Wide and styled letters become plain ones, invisible ones vanish, and escapes of URLs, HTML and JSON are read.
    """
    escaped = {match.start(): match for match in _WRITTEN_OTHERWISE.finditer(text)}
    if text.isascii() and not escaped:
        return text, []
    letters: list[str] = []
    places: list[int] = []
    at = 0
    while at < len(text):
        match = escaped.get(at)
        read = text[at] if match is None else _read(match[0])
        for letter in unicodedata.normalize("NFKC", read):
            if (unicodedata.category(letter) not in ("Cf", "Mn") or letter == "\n") and letter not in _BLANK:
                letters.append(_usual(letter))
                places.append(at)
        at = at + 1 if match is None else match.end()
    return "".join(letters), [*places, len(text)]


def _read(escape: str) -> str:
    if escape[0] == "&":
        return html.unescape(escape)
    number = int(escape.lstrip("\\uUx%"), 16)
    return chr(number) if 32 <= number < 127 else escape[0]


def _usual(letter: str) -> str:
    """Digits of other scripts, dashes, and the dot of Chinese addresses, as they are usual in numbers and addresses."""
    if letter.isascii():
        return letter
    digit = unicodedata.decimal(letter, None)
    return str(digit) if digit is not None else {"Pd": "-"}.get(unicodedata.category(letter), letter.replace("。", "."))


def _all(text: str, kinds: frozenset[str], region: str | None, presidio: tuple[str, ...]) -> Iterator[Found]:
    if "SECRET" in kinds:
        for pattern in (_PRIVATE_KEY, *_secrets()):
            yield from (Found(*match.span(), "SECRET", match[0]) for match in pattern.finditer(text))
    if "EMAIL" in kinds and "@" in text:
        for match in _EMAIL.finditer(text):
            yield Found(match.start(), match.end(), "EMAIL", match[0])
    if any(map(str.isdigit, text)):
        yield from _numbers(text, kinds, region)
    if presidio:
        for one in _analyzer().analyze(text, language="en", entities=list(presidio)):
            yield Found(one.start, one.end, one.entity_type, text[one.start : one.end])


def _numbers(text: str, kinds: frozenset[str], region: str | None) -> Iterator[Found]:
    from stdnum import iban, luhn
    from stdnum.us import ssn

    for match in _IBAN.finditer(text) if "IBAN" in kinds else ():
        for end in range(match.end(), match.start() + 14, -1):  # words may follow
            if iban.is_valid(re.sub(r"[\s-]", "", text[match.start() : end])):
                yield Found(match.start(), end, "IBAN", text[match.start() : end])
                break
    if "CARD" in kinds:
        yield from _cards(text, luhn.is_valid)
    for match in _SSN.finditer(text) if "SSN" in kinds else ():
        if ssn.is_valid(match[0]):
            yield Found(*match.span(), "SSN", match[0])
    if "PHONE" in kinds and (region or "+" in text):
        import phonenumbers

        for one in phonenumbers.PhoneNumberMatcher(text, region):
            yield Found(one.start, one.end, "PHONE", one.raw_string)


def _cards(text: str, is_valid: Callable[[str], bool]) -> Iterator[Found]:
    for match in _CARD.finditer(text):
        start, last = match.span(1)
        ends = (one.start() for one in _CARD_END.finditer(text, start))
        for end in reversed(list(takewhile(last.__ge__, ends))):
            number = re.sub(r"\D", "", text[start:end])
            if len(number) > 12 and is_valid(number):
                yield Found(start, end, "CARD", text[start:end])
                break


def canonical(kind: str, value: str) -> str:
    """A value as it is compared: the same number may be written in several ways."""
    if kind in ("IBAN", "CARD", "SSN", "PHONE"):
        return re.sub(r"[^\dA-Z+]", "", value.upper())
    return value.lower() if kind == "EMAIL" else value


@cache
def _secrets() -> list[re.Pattern[str]]:
    """The patterns of detect-secrets for keys and tokens."""
    import detect_secrets.plugins
    from detect_secrets.plugins.base import RegexBasedDetector

    found: list[re.Pattern[str]] = []
    for module in pkgutil.iter_modules(detect_secrets.plugins.__path__):
        if module.name in _LEFT_OUT:
            continue
        for one in vars(importlib.import_module(f"detect_secrets.plugins.{module.name}")).values():
            if isinstance(one, type) and issubclass(one, RegexBasedDetector) and one is not RegexBasedDetector:
                found += one().denylist
    return list(dict.fromkeys(found))


@cache
def _analyzer() -> Any:
    """presidio's analyzer, with the language model that it is set up with."""
    from presidio_analyzer import AnalyzerEngine  # type: ignore[import-not-found, unused-ignore]

    return AnalyzerEngine()
