"""Which names say that their value is a secret: of environment variables, of dictionary keys, of fields in a text."""

from __future__ import annotations

import os
import re
from functools import lru_cache

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = re.compile(r"passw(?:or)?d|passphrase|secret|credential|apikey|authorization")
_LAST = ("token", "pwd", "cookie", "bearer")
# Behind one of those words they make a name that tells about a secret, and is none: `password_length`, `TOKEN_URL`.
_ABOUT = frozenset(
    """file path dir folder url uri arn id ids name names type types length size count limit policy hint field fields
    enabled required version prefix expiry expires expiration ttl rules manager store provider service index label
    changed updated created strength reset status""".split()  # noqa: SIM905
)
# `next_page_token` and `pad_token` are no secrets; nor are `sort_key` and `public_key`.
_NO_TOKEN = frozenset(
    """next page continuation max min pad eos bos sep cls mask unk per first last special stop sync
    resume""".split()  # noqa: SIM905
)
_PLURALS = {"keys": ("api", "secret", "private", "access"), "tokens": ("access", "auth", "refresh")}
_KEYS = frozenset(
    """api secret private access auth encryption encrypt signing sign master account shared subscription service ssh
    rsa dsa ec jwt webhook license deploy admin client session app host ssl tls aes hmac""".split()  # noqa: SIM905
)
_NO_KEY = frozenset(
    """public primary foreign sort cache partition row hash range group object index unique""".split()  # noqa: SIM905
)
_PLAIN_WORDS = ("administrator", "administration", "authentication", "configuration", "notconfigured", "placeholder")
SHORTEST = 8  # characters of a value that is looked for wherever it stands
_USERINFO = re.compile(r"[A-Za-z][\w+.-]*://[^\s/:@]*:([^\s/@]+)@")


@lru_cache(maxsize=4096)
def names_secret(name: str, own: tuple[str, ...] = ()) -> bool:
    """Whether a value of this name is a secret, whatever it is.

    Args:
        name: `api_key`, `X-Api-Key`, `dbPassword`, `GITHUB_TOKEN`.
        own: further names, as the setting `mask` lists them.
    """
    if len(name) > 200:
        return False
    words = [word.lower() for word in _WORDS.findall(name) if not word.isdigit()]
    if not words:
        return False
    if name.lower() in own:
        return True
    before, last = ["", *words][-2:]
    if _ALWAYS.search("".join(words)):
        return last not in _ABOUT
    if last in _PLURALS:
        return before in _PLURALS[last]
    if last == "key":
        variable = name.isupper() and before not in _NO_KEY and before != ""
        return before in _KEYS or variable
    if last in ("pass", "pat", "dsn"):
        return bool(before) or name.isupper()
    return last in _LAST and before not in _NO_TOKEN


def environment(own: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    """The environment variables whose values are secret, or hold one: name and value."""
    names = [name for name in os.environ if _may_hold_secret(name, own)]
    return tuple((name, os.environ.get(name, "")) for name in names)


@lru_cache(maxsize=4096)
def _may_hold_secret(name: str, own: tuple[str, ...]) -> bool:
    if name in ("PWD", "OLDPWD"):  # folders
        return False
    return names_secret(name, own) or name.upper().endswith(("URL", "URI", "CONNECTION_STRING"))


def values_of(name: str, value: str, own: tuple[str, ...] = ()) -> list[str]:
    """What is secret in an environment variable's value: all, the items of a list, or a URL's password."""
    found = _USERINFO.findall(value)
    if names_secret(name, own) and not _is_path(value):
        found.append(value)
        if name.upper().endswith("S"):  # API_KEYS=one,two
            found += re.split(r"[\s,;]+", value)
    return [text for text in map(str.strip, found) if is_telling(text)]


def is_telling(value: str) -> bool:
    """Whether a value is long and rare enough to be looked for: short ones and words would be found everywhere."""
    if len(value) < SHORTEST or value.lower() in _PLAIN_WORDS:
        return False
    if value.isalpha() and value.isascii() and len(value) < 12 and value in (value.lower(), value.upper()):
        return False
    return len(set(value)) > 2 and not (value.isdigit() and len(value) < 10)


def _is_path(value: str) -> bool:
    """Whether it names a file: `GOOGLE_APPLICATION_CREDENTIALS` does."""
    try:
        return value.startswith(("/", "~", "./", "../")) and os.path.exists(os.path.expanduser(value))
    except (OSError, ValueError):
        return False
