"""Personal data and secrets as they may be written, and whether they are found. `False`: they get through."""

from __future__ import annotations

import base64
import json
import urllib.parse
from typing import Any

MAIL, PHONE, IBAN, CARD = "ada.l@example.org", "+49 171 1234567", "DE89 3704 0044 0532 0130 00", "4111 1111 1111 1111"
# No secret of anybody: put together here, so that scanners of repositories do not stop at them.
GITHUB, STRIPE = "ghp_" + "a1B2" * 9, "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"
SLACK = "xoxb-" + "1234567890-" * 2 + "AbCdEfGh"
AWS, JWT = "AKIA" + "IOSFODNN7ABCDEFG", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + "c2lnbmF0dXJlc2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nq83vEjRWeJq83v\n-----END RSA PRIVATE KEY-----"
WIDE = {ord(letter): ord(letter) + 0xFEE0 for letter in map(chr, range(0x21, 0x7F))}

# A text, what must not be left of it, and whether it is found.
TEXTS: list[tuple[str, str, bool]] = [
    (f"Write to {MAIL}.", MAIL, True),
    (f"<{MAIL}>", MAIL, True),
    (f"mailto:{MAIL}?subject=x", MAIL, True),
    (f"[mail](mailto:{MAIL})", MAIL, True),
    (f"'{MAIL}','{MAIL}'", MAIL, True),
    (f"a\n{MAIL}\nb", MAIL, True),
    (f"{MAIL}{MAIL}", MAIL, True),
    (f"x={MAIL}&y=1", MAIL, True),
    ("Ada Lovelace <ADA.L@EXAMPLE.ORG>", "ADA.L@EXAMPLE.ORG", True),
    ("ada+tag@mail.example.co.uk", "ada+tag@mail", True),
    ("größe@münchen.example", "größe@", True),
    ("用户@例子.公司", "用户@", True),
    ("ada.l＠example.org", "ada.l＠", True),
    (MAIL.translate(WIDE), "ａｄａ", True),
    ("𝐚𝐝𝐚@example.org", "𝐚𝐝𝐚", True),
    ("ada.l\u200b@exam\u200bple.org", "exam\u200bple", True),
    ("ada.l\u00ad@example.org", "example.org", True),
    ("ada.l@exa\u2060mple.org", "mple.org", True),
    ("ada.l%40example.org", "ada.l%40", True),
    ("ada%2El%40example%2Eorg", "ada%2El", True),
    (urllib.parse.quote(f"https://x/?q={MAIL}"), "ada.l", True),
    ("ada.l&#64;example.org", "ada.l&#64;", True),
    ("ada.l&#x40;example.org", "ada.l&#x40;", True),
    ("ada.l&commat;example&period;org", "ada.l&commat;", True),
    ("ada.l\\u0040example.org", "ada.l\\u0040", True),
    (json.dumps({"a": [MAIL, {"b": MAIL}]}), MAIL, True),
    (json.dumps(json.dumps({"a": MAIL})), MAIL, True),
    (f'{{"a": "{MAIL}"', MAIL, True),
    (f"{'x' * 50_000} {MAIL}", MAIL, True),
    (f"<!-- {MAIL} -->", MAIL, True),
    (f"\u202e{MAIL}\u202c", MAIL, True),
    ("e\u0301da@example.org", "da@example", True),
    (f"Call {PHONE}!", PHONE, True),
    ("+491711234567", "+491711234567", True),
    ("+1 (415) 555-2671", "555-2671", True),
    ("tel:+1-415-555-2671", "555-2671", True),
    ("0049 171 1234567", "1234567", False),
    ("+４９ 171 1234567", "1234567", True),
    ("+49\u00a0171\u00a01234567", "1234567", True),
    (f"IBAN {IBAN}, please", "3704 0044", True),
    (IBAN.replace(" ", ""), "37040044", True),
    (IBAN.replace(" ", "").lower(), "37040044", True),
    (IBAN.replace(" ", "-"), "3704-0044", True),
    ("GB82 WEST 1234 5698 7654 32", "WEST 1234", True),
    (f"card {CARD}", "1111 1111", True),
    (CARD.replace(" ", ""), "41111111", True),
    (CARD.replace(" ", "-"), "4111-1111", True),
    (f"{CARD} 12/29 123", "1111 1111", True),
    (f"{CARD} 12", "1111 1111", True),
    (f"4711 {CARD} 0815", "1111 1111", True),
    (f"{CARD}1234567", "1111 1111", False),  # a longer number, which is no card's
    ("3782 822463 10005", "822463", True),
    ("SSN 536-90-4399.", "536-90", True),
    (f"token {GITHUB}", GITHUB, True),
    (f"curl -H 'Authorization: Bearer {GITHUB}'", GITHUB, True),
    (f"https://ada:{GITHUB}@github.com/x", GITHUB, True),
    (f"key={STRIPE}", STRIPE, True),
    (f"export AWS={AWS}", AWS, True),
    (f"slack {SLACK}", SLACK, True),
    (f"jwt {JWT}", JWT, True),
    (PEM, "MIIEowIBAAKCAQEA", True),
    (PEM[:60], "MIIEowIBAAKCAQEA", True),
    (PEM.replace("\n", "\\n"), "MIIEowIBAAKCAQEA", True),
    ('password = "hunter2-hunter2"', "hunter2-hunter2", True),
    ("postgres://ada:s3cr3t-pass@db/x", "s3cr3t-pass", True),
    (f"{GITHUB[:20]}\u200b{GITHUB[20:]}", GITHUB[20:], True),
    (GITHUB.translate(WIDE), GITHUB.translate(WIDE)[4:], True),
    (f"{{\"key\": \"{STRIPE}\"}}", STRIPE, True),
    # What gets through.
    ("ada.l (at) example (dot) org", "ada.l", False),
    ("ada.l at example dot org", "ada.l", False),
    ("ada.l @ example.org", "ada.l", False),
    ("ada.l@\nexample.org", "ada.l", False),
    ("ada.l@example", "ada.l", False),
    ("a d a . l @ e x a m p l e . o r g", "a d a", False),
    ("gro.elpmaxe@l.ada", "l.ada", True),
    (base64.b64encode(b"grace.h@example.org").decode(), "Z3JhY2", False),
    (b"grace.h@example.org".hex(), "67726163", False),
    ("nqn.y@rknzcyr.bet", "nqn.y", True),
    ("grace.h%2540example.org", "grace.h", False),
    ("\\x61da.l\\x40example.org", "da.l", False),
    ("ada.l@​example.org", "ada.l", True),
    ("first part: ada.l, second part: example.org", "ada.l", False),
    ("plus four nine one seven one", "four nine", False),
    ("+49 171 12345\n67", "12345", False),
    ("4111.1111.1111.1111", "4111.1111", False),
    ("4111 1111 1111 1112", "4111 1111", False),
    ("DE00 3704 0044 0532 0130 00", "3704 0044", False),
    (f"{AWS[:10]} {AWS[10:]}", AWS[10:], False),
    (f"{GITHUB[:20]}\" + \"{GITHUB[20:]}", GITHUB[20:], False),
    (base64.b64encode(AWS.replace("ABC", "XYZ").encode()).decode(), "QUtJ", False),
    (AWS[::-1], AWS[::-1], False),
    ("hunter2-hunter2", "hunter2", False),
    ("Ada Lovelace, 12 St James's Square", "Ada Lovelace", False),
    ("born on 10 December 1815", "1815", False),
    ("192.168.0.17", "192.168", False),
]  # fmt: skip

# What is no personal data, and stays as it is.
HARMLESS = (
    "user@localhost is no address on the net", "@decorator", "a @ b", "1763876400000", "order 6011-22",
    "2026-11-23 06:15", "version 3.11.7", "DE is a country", "def f(password: str) -> None: ...", "100%", "%20",
    "&amp;", "uuid 550e8400-e29b-41d4", "sha256:9f86d081884c7d659a2feaa0c55ad015", "12345", "+", "größe 設定 🙂", "",
    "x" * 10_000,
)  # fmt: skip

# Results of tools, which must not keep the address anywhere.
NESTED: list[Any] = [
    {"a": {"b": [{"c": MAIL}]}}, [[[MAIL]]], {MAIL: 1}, (MAIL, 1), {"type": "text", "text": MAIL},
    [None, True, 1.5, MAIL], {"k": f"{MAIL} {PHONE}"}, {"a": {"a": {"a": {"a": {"a": MAIL}}}}}, f"  {MAIL}  ",
    {1: MAIL, None: MAIL},
]  # fmt: skip
