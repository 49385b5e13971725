"""What keys look like, and fields in a text whose name says that they are secret."""

from __future__ import annotations

import re

from connectagent.masking.names import names_secret

# Inside long base64, as the signatures of thinking blocks are, nothing may match: a key begins where no such letter
# stands before it. What stands there in JSON text or a URL may be the end of an escape.
_START = r"(?:(?<![A-Za-z0-9_+/-])|(?<=[^A-Za-z0-9+_]/)|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9A-Fa-f]{2}))"
_END = r"(?![A-Za-z0-9_+/=-])"
_PEM = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BODY = r"(?:(?!-----END)[A-Za-z0-9+/=\s\\,:.-])*"

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
    "URL password": (("://",), r"://[^\s/:@\"'<>\\]{0,200}:(?!\[masked)[^\s/@\"'<>\\]{1,1000}(?=@)"),
}
STEMS = tuple(
    {start.lower(): None for starts, _ in SHAPES.values() for start in starts if start != "://"} | {"://": None}
)
"""One of these is in each text that a shape is in, written small."""

_COMPILED = [(label, starts, re.compile(shape)) for label, (starts, shape) in SHAPES.items()]


def mask_shapes(text: str) -> str:
    """Text without the keys that are told by their form."""
    # One pattern for all took 1 us a character; `in` rules nearly all of them out at once.
    for label, starts, shape in _COMPILED:
        if any(start in text for start in starts):
            text = shape.sub(_user_mark if label == "URL password" else f"[masked: {label}]", text)
    return text


def _user_mark(match: re.Match[str]) -> str:
    return f"://{match[0][3:].partition(':')[0]}:[masked: URL password]"


# -- fields: password="...", "token": "...", Authorization: ... ------------------------------------

FIELD_STEMS = ("passw", "passphrase", "secret", "credential", "authorization", "cookie", "pwd", "dsn", "bearer")
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
_HEADER = re.compile(r"(?:authorization|cookie)\s{0,4}[:=]\s{0,4}(?P<line>[^\n\r\"'\\]+)")
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
    low = small(text)
    parts, done, at = [], 0, 0
    for place in _places(low):
        found = _VALUE.match(low, place) if place >= at else None
        if found is None:
            continue
        header = _HEADER.match(low, found.start())
        start, end, name = _value_of(text, found, header, own)
        if name and not text.startswith("[masked: ", start):
            parts += [text[done:start], f"[masked: {name}]"]
            at = done = end
    return "".join([*parts, text[done:]])


def _places(low: str) -> list[int]:
    """Where one of the words begins that names of secrets hold. One pattern for all would take ten times as long."""
    found = set()
    for word in _WORDS:
        at = low.find(word)
        while at >= 0:
            found.add(at)
            at = low.find(word, at + 1)
    return sorted(found)


def _value_of(
    text: str, found: re.Match[str], header: re.Match[str] | None, own: tuple[str, ...]
) -> tuple[int, int, str]:
    """Where a field's value stands, and the field's name; "" where it is to be left."""
    before = _NAME_BEFORE.search(text, max(0, found.start() - 60), found.start())
    begin = before.start() if before else found.start()
    name = text[begin : found.end("rest")].strip(".-")
    if not names_secret(name, own):
        return 0, 0, ""
    if header is not None:
        return header.start("line"), header.end("line"), name
    if found["open"] is not None:
        return found.start("quoted"), found.end("quoted"), name if found["quoted"] else ""
    start, end = found.span("bare")
    value, after = text[start:end], text[end : end + 1]
    if found["named"]:  # "pin_token": 1234
        return start, end, name if value[:1].isdigit() else ""
    # `f(token=token)` and `password: str` are code.
    alone = (begin == 0 or text[begin - 1] in "\n?&;-# \t") and after in ("", "\n", "\r", " ", "&", ";", '"', "'", "\\")
    telling = len(value) >= 6 and not value.startswith(("$", "%", "*"))
    if found["sep"] == "=" and found.end("sep") == start and text[found.end("rest")] == "=":
        return start, end, name if alone and telling and value != name else ""
    line = text.rfind("\n", 0, begin) + 1
    whole = not text[line:begin].strip(" \t-") and after in ("", "\n", "\r")
    return start, end, name if whole and telling and any(map(str.isdigit, value)) else ""


# -- what may still become one -------------------------------------------------------------------


def _partly(start: str) -> str:
    """A pattern for the beginnings of a text, at a text's end."""
    return "(?:" + "|".join(re.escape(start[:length]) for length in range(len(start), 0, -1)) + r")\Z"


_STARTS = [start for starts, _ in SHAPES.values() for start in starts if start not in ("://", "-----BEGIN ")]
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~+/=-"
_OPEN_KEY = re.compile(
    "|".join(
        [
            *(_START + re.escape(start) + r"\s*[A-Za-z0-9._~+/=-]*\Z" for start in _STARTS),
            *(_START + _partly(start) for start in _STARTS),
        ]
    )
)
_OPEN_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]*-{0,5}\Z|"
    + _PEM + _PEM_BODY + r"(?:-----END[A-Z0-9 ]*-{0,5})?\Z|(?<!-)" + _partly("-----BEGIN ")
)  # fmt: skip
_OPEN_URL = re.compile(r"(?<=://)[^\s/@\"'<>]{0,1200}\Z")
_OPEN_FIELD = re.compile(
    _FIELD + r"(?P<value>\\*(?P<quote>[\"'])(?:(?!(?P=quote))[^\n])*|[^\s\"'&;,<>(){}\[\]`]*)\Z"
)
_OPEN_HEADER = re.compile(r"(?:authorization|cookie)\s{0,4}[:=]\s{0,4}(?P<value>[^\n\r\"']*)\Z")


def open_at(text: str) -> int:
    """From where on a text may become a key, or a secret field's value, with what comes next."""
    # Only the last word can be a key that goes on: to look for one everywhere took a hundred times as long.
    last = max(0, len(text.rstrip(_LETTERS)) - 12)
    found = [_OPEN_KEY.search(text, last)]
    if "-" in text:
        found.append(_OPEN_PEM.search(text))
    if "://" in text:
        found.append(_OPEN_URL.search(text))
    starts = [match.start() for match in found if match]
    low = small(text)
    fields = [pattern.match(low, place) for place in _places(low) for pattern in (_OPEN_FIELD, _OPEN_HEADER)]
    return min([len(text), *starts, *(match.start("value") for match in fields if match)])
