"""What keys look like, and fields in a text whose name says that they are secret."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from connectagent.output.masking.names import names_secret

# Inside long base64, as the signatures of thinking blocks are, nothing may match: a key begins where no such letter
# stands before it. What stands there in JSON text or a URL may be the end of an escape.
_START = r"(?:(?<![A-Za-z0-9_+/-])|(?<=[^A-Za-z0-9+_]/)|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9A-Fa-f]{2}))"
_END = r"(?![A-Za-z0-9_+/=-])"
_PEM = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BODY = r"(?:(?!-----END)[A-Za-z0-9+/=\s\\,:.-])*"
_LOGIN = r"(?P<user>[^\s/:@\"'<>\\]{0,200}):(?!\[masked)[^\s/@\"'<>\\]{1,1000}(?=@)"

# By the mark that stands in its place: how it begins, and the whole.
SHAPES: dict[str, tuple[tuple[str, ...], str]] = {
    "sk-...": (
        ("sk-",),
        _START + r"sk-(?:(?:ant|proj|or|svcacct|admin)-[A-Za-z0-9_-]{8,}|(?=[A-Za-z_-]{0,60}\d)[A-Za-z0-9_-]{16,})",
    ),
    "sk_...": (
        ("sk_live_", "rk_live_", "sk_test_", "rk_test_", "whsec_"),
        _START + r"(?:[sr]k_(?:live|test)|whsec)_[A-Za-z0-9]{10,}",
    ),
    "AKIA...": (("AKIA", "ASIA"), _START + r"A[KS]IA[A-Z0-9]{16}" + _END),
    "ghp_...": (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _START + r"gh[pousr]_[A-Za-z0-9]{20,}"),
    "github_pat_...": (("github_pat_",), _START + r"github_pat_[A-Za-z0-9_]{20,}"),
    "glpat-...": (("glpat-",), _START + r"glpat-[A-Za-z0-9_.-]{16,}"),
    "xox...": (("xox", "xapp-"), _START + r"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,}"),
    "AIza...": (("AIza",), _START + r"AIza[A-Za-z0-9_-]{35}" + _END),
    "ya29...": (("ya29.",), _START + r"ya29\.[A-Za-z0-9_-]{20,}"),
    "npm_...": (("npm_",), _START + r"npm_[A-Za-z0-9]{30,}"),
    "pypi-...": (("pypi-",), _START + r"pypi-[A-Za-z0-9_-]{40,}"),
    "hf_...": (("hf_",), _START + r"hf_[A-Za-z0-9]{20,}"),
    "gsk_...": (("gsk_",), _START + r"gsk_[A-Za-z0-9]{20,}"),
    "xai-...": (("xai-",), _START + r"xai-[A-Za-z0-9]{30,}"),
    "pplx-...": (("pplx-",), _START + r"pplx-[A-Za-z0-9]{30,}"),
    "SG...": (("SG.",), _START + r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    "JWT": (("eyJ",), _START + r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"),
    "private key": (
        ("-----BEGIN ",),
        _PEM + _PEM_BODY + r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
    ),
    "bearer token": (
        ("Bearer ", "bearer ", "BEARER "),
        r"(?<=[Bb]earer )(?=[^\s\"']{0,60}\d)[A-Za-z0-9._~+/=-]{16,}|(?<=BEARER )[A-Za-z0-9._~+/=-]{16,}",
    ),
    "URL password": (("://",), "://" + _LOGIN),
}
STEMS = tuple(
    {start.lower(): None for starts, _ in SHAPES.values() for start in starts if start != "://"} | {"://": None}
)
"""One of these is in each text that a shape is in, written small."""


@cache
def _compiled(label: str) -> re.Pattern[str]:
    """The pattern of a shape; most programs never meet most of them, and to compile all takes 5 ms."""
    return re.compile(SHAPES[label][1])


def mask_shapes(text: str) -> str:
    """Text without the keys that have a known form."""
    # One pattern for all took 1 us a character; `in` rules nearly all of them out at once.
    for label, (starts, _) in SHAPES.items():
        if any(start in text for start in starts):
            text = _compiled(label).sub(_login_mark if label == "URL password" else f"[masked: {label}]", text)
    return text


def _login_mark(match: re.Match[str]) -> str:
    return f"{match[0][: match.end('user') - match.start()]}:[masked: URL password]"


# -- fields: password="...", "token": "...", Authorization: ... ------------------------------------

FIELD_STEMS = ("passw", "passphrase", "secret", "credential", "authorization", "cookie", "pwd", "dsn", "bearer")
_PARTS = ("-", "k_", "gh", "pass", "cre")  # each is in several stems, and seldom elsewhere


def by_parts(stems: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Stems by a part that is in each of them: to look for the parts first takes a third less time."""
    found: dict[str, list[str]] = {}
    for stem in stems:
        found.setdefault(next((part for part in _PARTS if part in stem), stem), []).append(stem)
    return list(found.items())


# The counts of tokens are in each model call. A pattern that begins with letters is searched for at C's speed.
FIELD_WORDS = (
    re.compile(r"token(?:(?!s)|s(?<=access.tokens)|s(?<=auth.tokens)|s(?<=refresh.tokens))"),
    re.compile(r"key(?<=[a-z0-9_.-]key)s?(?![a-z])"),
    re.compile(r"pass(?<=[a-z0-9_.-]pass)(?![a-z])"),
    re.compile(r"pat(?<=[a-z0-9_.-]pat)(?![a-z])"),
)
_FIELD = (
    r"(?:passw(?:or)?d|passphrase|secret|token|key|credential|authorization|cookie|pwd|dsn|[_-]pa(?:ss|t)(?![a-z]))"
    r"(?P<rest>[a-z0-9_-]{0,30})"
    r"(?P<named>\\*[\"'])?[ \t]{0,4}(?P<sep>=>|[:=])[ \t]{0,4}"
)
_VALUE = re.compile(
    _FIELD
    + r"(?:(?P<open>\\*[\"'])(?P<quoted>[^\n]*?)(?:(?<!\\)(?P=open)|(?=\n)|\Z)|(?P<bare>[^\s\"'&;,<>(){}\[\]\\`]+))"
)
_NAME = re.compile(_FIELD)
_NO_VALUE_YET = re.compile(_FIELD + r"\\*\Z")
_HEADER = re.compile(r"(?:authorization|cookie)\s{0,4}(?:=>|=(?!>)|:)\s{0,4}(?P<line>[^\s\"'\\][^\n\r\"'\\]*)")
_NAME_BEFORE = re.compile(r"[A-Za-z0-9_.-]{0,60}\Z")
_WORDS = ("passw", "passphrase", "secret", "token", "key", "credential", "authorization", "cookie", "pwd", "dsn",
    "_pass", "-pass", "_pat", "-pat")  # fmt: skip
_SMALL = {code: code + 32 for code in range(65, 91)}


def small(text: str) -> str:
    """Text in small letters, of the same length: `lower()` makes two of some."""
    low = text.lower()
    return low if len(low) == len(text) else text.translate(_SMALL)


def mask_fields(text: str, own: tuple[str, ...] = ()) -> str:
    """Text in which the values of fields with secret names are masked: `password='x'`, `"token": "y"`, `TOKEN=z`."""
    parts = []
    done = 0
    for start, end, mark in settled_fields(text, own, 0, 0, True)[0]:
        parts += [text[done:start], mark]
        done = end
    return "".join([*parts, text[done:]])


def settled_fields(
    text: str, own: tuple[str, ...], at: int, done: int, whole: bool
) -> tuple[list[tuple[int, int, str]], int]:
    """The values of fields with secret names that no further text can change.

    Args:
        text: it may go on.
        own: further names, as the setting `mask` lists them.
        at: where the last value that was masked ended: no name of a field begins before that.
        done: values that begin before that were decided about, when more of what is before them was known.
        whole: nothing follows the text.

    Returns:
        Start, end and mark of each value, and the place from which on more text may make another one.
    """
    low = small(text)
    spans: list[tuple[int, int, str]] = []
    for place in _places(low, max(at, done - 200)):
        if place < at:
            continue
        found = _VALUE.match(low, place)
        header = _HEADER.match(low, place) if found else None
        if not whole and done <= (opened := _opened(text, low, place, (found, header), own)):
            return spans, opened
        if found is None:
            continue
        start, at_end, name = _value_of(text, found, header, own)
        if name and start >= done and not text.startswith("[masked: ", start):
            spans.append((start, at_end, f"[masked: {name}]"))
            at = at_end
    return spans, len(text)


def _opened(text: str, low: str, place: int, read: tuple[re.Match[str] | None, ...], own: tuple[str, ...]) -> int:
    """Where a secret field's value begins that goes on at the text's end; -1 where there is none."""
    if not any(match.end() == len(text) for match in read if match) and not _NO_VALUE_YET.match(low, place):
        return -1
    field = _NAME.match(low, place)
    return field.end("sep") if field and names_secret(_name(text, field)[1], own) else -1


def _places(low: str, first: int) -> list[int]:
    """Where one of the words begins that names of secrets hold. One pattern for all would take ten times as long."""
    found = set()
    for word in _WORDS:
        at = low.find(word, first)
        while at >= 0:
            found.add(at)
            at = low.find(word, at + 1)
    return sorted(found)


def _name(text: str, found: re.Match[str]) -> tuple[int, str]:
    """Where a field's name begins, and the name."""
    before = _NAME_BEFORE.search(text, max(0, found.start() - 60), found.start())
    begin = before.start() if before else found.start()
    return begin, text[begin : found.end("rest")].strip(".-")


def _value_of(
    text: str, found: re.Match[str], header: re.Match[str] | None, own: tuple[str, ...]
) -> tuple[int, int, str]:
    """Where a field's value stands, and the field's name; "" where it is to be left."""
    begin, name = _name(text, found)
    if not names_secret(name, own):
        return 0, 0, ""
    if header is not None:
        return header.start("line"), header.end("line"), name
    if found["open"] is not None:
        return found.start("quoted"), found.end("quoted"), name if found["quoted"] else ""
    return *found.span("bare"), name if _is_secret_without_quotes(text, found, begin, name) else ""


def _is_secret_without_quotes(text: str, found: re.Match[str], begin: int, name: str) -> bool:
    """Whether a field's bare value is a secret: in `f(token=token)` and `password: str` it is code."""
    start, end = found.span("bare")
    value = text[start:end]
    after = text[end : end + 1]
    if found["named"]:  # "pin_token": 1234
        return value[:1].isdigit()
    if len(value) < 6 or value.startswith(("$", "%", "*")):
        return False
    if found["sep"] == "=" and found.end("sep") == start and text[found.end("rest")] == "=":
        first = begin == 0 or text[begin - 1] in "\n?&;-# \t"
        return first and after in ("", "\n", "\r", " ", "&", ";", '"', "'", "\\") and value != name
    line = text.rfind("\n", 0, begin) + 1
    alone = not text[line:begin].strip(" \t-") and after in ("", "\n", "\r")
    return alone and any(map(str.isdigit, value))


# -- what may still become one -------------------------------------------------------------------

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~+/=-"
_WORD = r"[A-Za-z0-9._~+/=-]*"


def _partly(start: str) -> str:
    """A pattern for the beginnings of a text, at a text's end."""
    return "(?:" + "|".join(re.escape(start[:length]) for length in range(len(start), 0, -1)) + r")\Z"


def _open_key(starts: tuple[str, ...]) -> str:
    return "|".join(_START + f"(?:{re.escape(start)}{_WORD}\\Z|{_partly(start)})" for start in starts)


# The places in which a shape may begin and that are read up to the end of the text.
_OPEN = {
    "private key": (
        r"-----BEGIN [A-Z0-9 ]{0,57}-{0,4}\Z|"
        + _PEM + _PEM_BODY + r"(?:-----END[A-Z0-9 ]{0,58}-{0,4})?\Z|" + _partly("-----BEGIN ")
    ),
    "bearer token": r"(?<=[Bb]earer |BEARER )(?:[^\s\"']{0,60}|" + _WORD + r")\Z",
    "URL password": r"(?<=://)[^\s/@\"'<>\\]{0,1201}\Z",
}  # fmt: skip


@cache
def _beginnings() -> tuple[re.Pattern[str], re.Pattern[str], int]:
    """What finds the beginning of a shape, and a part of one at a text's end; and how long the longest is."""
    starts = [start for starts, _ in SHAPES.values() for start in starts]
    whole = "|".join(map(re.escape, starts))
    part = "|".join(map(_partly, starts))
    return re.compile(whole), re.compile(part), max(map(len, starts))


def may_hold_shape(text: str) -> bool:
    """Whether one of the shapes is in a text, or may begin at its end."""
    whole, part, longest = _beginnings()
    return bool(whole.search(text) or part.search(text, max(0, len(text) - longest)))


class Shape:
    """One of the shapes, looked for in a text that goes on.

    Args:
        label: its mark, a key of `SHAPES`.
    """

    def __init__(self, label: str) -> None:
        starts, shape = SHAPES[label]
        # "://" is shown at once: only what follows it waits.
        self._shape = re.compile(shape if label != "URL password" else "(?<=://)" + _LOGIN)
        self._open = re.compile(_OPEN.get(label) or _open_key(starts))
        self._starts = starts
        self._key = label not in _OPEN
        self._hint = starts[0][0] if label == "private key" else ""
        self._mark = f"[masked: {label}]"
        self.goes_on = re.compile(r"[A-Za-z0-9+/=\s\\,:.-]*" if label == "private key" else _WORD)

    def search(self, text: str, at: int) -> re.Match[str] | None:
        """The first one from there on."""
        return self._shape.search(text, at) if any(start in text for start in self._starts) else None

    def open_at(self, text: str, at: int) -> int:
        """From where on a text may become one with what comes next."""
        if self._key:  # only the last word can be one that goes on: to look everywhere took a hundred times as long
            at = max(at, len(text.rstrip(_LETTERS)))
        elif self._hint not in text or not (self._hint or any(start in text for start in self._starts)):
            return len(text)
        found = self._open.search(text, at) if at < len(text) else None
        return found.start() if found else len(text)

    def mark(self, match: re.Match[str]) -> str:
        """What takes its place."""
        return self._mark if self._mark != "[masked: URL password]" else _login_mark(match)
