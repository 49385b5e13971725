"""The forms of a secret: escaped, quoted, encoded."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote, quote_plus

_STAYS = re.compile(r"[A-Za-z0-9]+")  # what no escaping changes


def forms(value: str) -> list[str]:
    """A secret as it is, as JSON, `repr` and a URL write it, and as base64 at any offset."""
    data = value.encode("utf-8", "replace")
    found = [value]
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        found += [once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]]  # JSON within JSON
    found += [repr(value)[1:-1], ascii(value)[1:-1], repr(data)[2:-1], value.replace("'", "\\'")]
    found += [quote(data, safe=""), quote(data), quote_plus(data)]
    found += [found[-3].replace("%", "%25"), re.sub("%..", lambda match: match[0].lower(), found[-3])]
    for before in range(3):  # its place in what is encoded decides about the letters
        text = base64.b64encode(b"\0" * before + data)
        letters = text.decode()[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        found += [letters, letters.replace("+", "-").replace("/", "_")]
    if "\n" in value:  # a key of many lines, with other line ends
        found.append(value.replace("\n", "\r\n"))
    return list(dict.fromkeys(found))


def core(form: str) -> str:
    """The longest part that no escaping changes; "" where it is too short to search for."""
    found = max(_STAYS.findall(form), key=len, default="")
    return found if len(found) > 2 else ""
