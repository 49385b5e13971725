"""What is taken for a secret, and what is not."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from connectagent.output.masking import Mask
from connectagent.output.masking import masks as masking
from connectagent.output.masking.names import is_telling, names_secret, values_of
from connectagent.output.masking.patterns import FIELD_STEMS, STEMS
from connectagent.output.masking.stream import Stream

SECRETS = ("pw\"7'x\\q", "tok+en/9=z", "é日本語-secret", "line one\nline two", "abc-DEF-0123")


@pytest.fixture(autouse=True)
def no_keys_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text waits while its end may begin a secret: a key that another test gave in code, too."""
    monkeypatch.setattr(masking, "_given", {})


@pytest.mark.parametrize(
    "name",
    [
        "password", "db_password", "dbPassword", "PGPASSWORD", "passwd", "secret", "client_secret",
        "AWS_SECRET_ACCESS_KEY", "clientSecret", "token", "access_token", "accessToken", "refresh_tokens",
        "GITHUB_TOKEN", "X-Api-Key", "api_key", "apiKey", "apikey", "api_keys", "private_key",
        "OPENAI_API_KEY", "SESSION_KEY", "ssh_key", "Authorization", "Cookie", "set-cookie", "credentials",
        "MYSQL_PWD", "DB_PASS", "GITHUB_PAT", "SENTRY_DSN", "passphrase", "approve.token",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert names_secret(name)
    mask = Mask()
    line = json.dumps({name: "x"})
    assert mask.suspects(line), "or the value would be written without being looked at"
    assert mask.value({name: {"any": ["thing"]}}) == {name: f"[masked: {name}]"}
    assert mask.value({name: 5, "other": None}) == {name: f"[masked: {name}]", "other": None}


@pytest.mark.parametrize(
    "name",
    [
        "tokens", "input_tokens", "max_tokens", "max_token", "token_count", "TOKEN_LIMIT",
        "next_page_token", "pad_token", "tokenizer", "key", "keys", "sort_key", "primary_key",
        "PUBLIC_KEY", "cache_key", "keyboard", "monkey", "SSH_AUTH_SOCK", "password_length",
        "PASSWORD_FILE", "TOKEN_URL", "secret_name", "pass", "passed", "path", "pattern", "author",
        "authored", "call_id", "signature", "encrypted_content",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not names_secret(name)
    value = {name: "some value"}
    assert Mask().value(value) is value


@pytest.mark.parametrize("stem", [*STEMS, *FIELD_STEMS, "k_own", "own-name"])
def test_each_stem_makes_a_text_suspect(stem: str) -> None:
    mask = Mask(own=("k_own", "own-name"))
    assert mask.suspects(f"ab {stem.upper()}cd, " * 5)
    assert not mask.suspects("tick_ gh - pass cre, " * 5)  # what only the parts of stems are in


def test_what_is_in_a_variable() -> None:
    assert values_of("X_TOKEN", "abcd1234") == ["abcd1234"]
    assert values_of("API_KEYS", "abcd1234, efgh5678") == ["abcd1234, efgh5678", "abcd1234", "efgh5678"]
    assert values_of("DATABASE_URL", "postgres://me:hunter22@db/x") == ["hunter22"]
    assert values_of("GOOGLE_APPLICATION_CREDENTIALS", __file__) == []
    for value in ("true", "required", "short", "development", "aaaaaaaaaaaa", "12345678", ""):
        assert not is_telling(value)
    assert is_telling("correcthorsebattery")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("use sk-proj-abc_DEF-123456 now", "use [masked: sk-...] now"),
        ("task-abcdef1234567890abcdef sk-circle-fade-dot-animation", None),
        ("AKIAABCDEFGHIJKLMNOP, ghp_" + "a1" * 18, "[masked: AKIA...], [masked: ghp_...]"),
        ("QUtJ+AKIAABCDEFGHIJKLMNOP/abc", None),
        ("xoxb-123456789012-abcdef AIza" + "x" * 35, "[masked: xox...] [masked: AIza...]"),
        ("Authorization: Bearer abc.def-123\nnext", "Authorization: [masked: Authorization]\nnext"),
        ("a Bearer abcdef123456789012 b", "a Bearer [masked: bearer token] b"),
        ("bearer of bad news, authorization is needed", None),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIx.SflKx-Q end", "[masked: JWT] end"),
        ("postgres://me:pw@db:5432/x", "postgres://me:[masked: URL password]@db:5432/x"),
        ("https://example.com:8080/a@b and mail@example.com", None),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nx", "[masked: private key]\nx"),
        ("login(user='me', password='a\\'b')", "login(user='me', password='[masked: password]')"),
        ("{'token': \"it's\", 'n': 1}", "{'token': \"[masked: token]\", 'n': 1}"),
        ('x {\\"api_key\\": \\"a b\\"} y', 'x {\\"api_key\\": \\"[masked: api_key]\\"} y'),
        ("/x?access_token=abc123&b=1", "/x?access_token=[masked: access_token]&b=1"),
        ("export DB_PASSWORD=hunter2\n", "export DB_PASSWORD=[masked: DB_PASSWORD]\n"),
        ("db:\n  password: hunter2\n", "db:\n  password: [masked: password]\n"),
        ("f(token=token, key=key) if password == other: the password: required", None),
        ("def f(password: str, token: int = 5, max_tokens=4096)", None),
        ('[{"a": {"secret": [1, 2]}, "n": 1e5}]', '[{"a": {"secret": "[masked: secret]"}, "n": 100000.0}]'),
        ("cost: 5 tokens, key: value, the token: a unit", None),
    ],
)
def test_keys_and_fields_in_a_text(text: str, masked: str | None) -> None:
    found = Mask().text(text)
    assert found == (text if masked is None else masked)
    assert Mask().text(found) == found, "what was masked stays as it is"
    nested = Mask().text(json.dumps({"text": json.dumps([text])}))
    assert json.loads(json.loads(nested)["text"])[0] == found


@given(st.text(max_size=30), st.sampled_from(SECRETS), st.text(max_size=30), st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_an_exact_value_is_found_however_deep_it_is_escaped(before: str, secret: str, after: str, depth: int) -> None:
    mask = Mask(tuple((f"S{number}", value) for number, value in enumerate(SECRETS)))
    text: Any = before + secret + after
    for _ in range(depth):
        text = json.dumps({"x": [text]}, ensure_ascii=depth % 2 == 0)
    line = json.dumps({"result": text})
    assert mask.suspects(line)
    found: Any = mask.text(text)
    for _ in range(depth):
        found = json.loads(found)["x"][0]
    assert secret not in found
    assert "[masked: S" in found


def _streamed(mask: Mask, text: str, lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a stream shows of a text in pieces of these lengths, the last one again and again."""
    masking.current()
    with monkeypatch.context() as patch:
        patch.setitem(masking._state, "mask", mask)
        stream, shown, at = Stream(), "", 0
        while at < len(text):
            length = lengths.pop(0) if len(lengths) > 1 else lengths[0]
            shown += stream.feed(text[at : at + length])
            at += length
        return shown + stream.flush()


PARTS = [
    "a ", "sk-", "x", *SECRETS, "sk-abc123def456ghi7", "\n", "token=", "'", '"', "Bearer ", "1", "abc-D", "\\", "@",
    ":", "postgres://me:", "-----BEGIN ", "RSA PRIVATE KEY-----", "-----END ", "Authorization: ", "=>","dbPassword': '",
    "api_key", "AKIAABCDEFGHIJKLMNOP", "eyJhbGciOiJIUzI1.", "[masked: ", "]", ".", "ID-12", "34", "tokens", " = ",
]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS)), st.lists(st.integers(1, 7), min_size=1), st.booleans())
@example(["sk-", "Bearer ", "x", "sk-abc123def456ghi7"], [5], False)
@example(["token=", "token=", SECRETS[0]], [5], False)
@example(["-----BEGIN ", "RSA PRIVATE KEY-----", "\n", "abc-DEF-0123", "'", "-----END "], [1], False)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_text_in_pieces_shows_what_the_whole_shows(
    monkeypatch: pytest.MonkeyPatch, parts: list[str], lengths: list[int], patterns: bool
) -> None:
    own = (r"ID-\d{4}", r"(?m)^a.*x$") if patterns else ()
    mask = Mask(tuple((f"S{number}", value) for number, value in enumerate(SECRETS)), patterns=own)
    text = "".join(parts)
    shown = _streamed(mask, text, lengths, monkeypatch)
    for secret in SECRETS:
        assert secret not in shown
    assert shown == mask.piece(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a sk-1" + "ab" * 8000 + "9 b", "a [masked: over 10000 characters] b"),
        ("x password='" + "a b " * 4000 + "\n b", "x password=[masked: over 10000 characters]\n b"),
        ("-----BEGIN PRIVATE KEY-----" + "\nMII1" * 3000 + "(b", "[masked: over 10000 characters](b"),
        ("a" * 30_000, "a" * 30_000),
    ],
)
def test_nothing_is_shown_of_what_waits_too_long(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _streamed(Mask(), text, [50], monkeypatch) == shown


def test_a_secret_given_while_a_text_streams_is_masked_from_then_on() -> None:
    stream = Stream()
    assert stream.feed("see password='x") == "see password="
    before = dict(masking._state)
    try:
        masking.add_secret("renewed-secret", "api_key")
        assert stream.feed("' renewed-") == "'[masked: password]' "
        assert stream.feed("secret now") == "[masked: api_key] now"
    finally:
        masking._state.update(before, given=-1)


def test_a_stream_waits_only_for_what_may_become_a_secret() -> None:
    stream = Stream()
    for piece in ("Hello wor", "ld, this is the answer", ": 42 tokens.\n", "- item\n", "A key: none. "):
        assert stream.feed(piece) == piece
    assert stream.feed("Look at sk-abc") == "Look at "
    assert stream.feed("-def ") == "sk-abc-def "


def test_a_stream_of_any_length_keeps_the_same() -> None:
    stream, held = Stream(), []
    tracemalloc.start()
    try:
        for count in (500, 20_000):
            for _ in range(count):
                stream.feed("some words that go on ")
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 50_000, "the text has 440 kB"


def test_values_that_are_no_data_and_circles_are_told_without_secrets() -> None:
    class Holder:
        def __repr__(self) -> str:
            return "Holder(token='abc-def')"

    circle: list[Any] = [{"password": "x"}]
    circle += [circle, circle]
    found = Mask().value({"h": Holder(), "c": circle, ("t",): {1, 2}})
    assert found["h"] == "Holder(token='[masked: token]')"
    assert found["c"] == [{"password": "[masked: password]"}, *["<list: it contains itself>"] * 2]
    clean = {"a": [1, (2, {3})], "h": object()}
    assert Mask().value(clean) is clean


def test_a_number_that_is_a_secret_is_masked() -> None:
    mask = Mask((("PIN_KEY", "492817365027"),))
    assert mask.value([492817365027, 492817365027.0, 5]) == ["[masked: PIN_KEY]", "[masked: PIN_KEY]", 5]
    others = [492817365027.5, 1764231108.25, float("inf"), -492817365027.0, 1e300]
    assert mask.value(others) is others


def test_secrets_given_in_code_do_not_pile_up() -> None:
    before, given = dict(masking._state), dict(masking._given)
    try:
        for number in range(masking.MOST_GIVEN + 50):
            masking.add_secret(f"renewed-{number:06}", "api_key")
        assert len(masking._given) == masking.MOST_GIVEN
        assert masking.current().text("renewed-001049") == "[masked: api_key]"
    finally:
        masking._given.clear()
        masking._given.update(given)
        masking._state.update(before, given=-1)


def test_a_value_that_cannot_be_compared_is_masked_as_others_are() -> None:
    class Array:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth value is ambiguous")

        def __repr__(self) -> str:
            return "Array(sk-proj-0123456789abcdefghijklmnop)"

    masked = masking.current().value({"one": Array(), "api_key": "", "two": "sk-proj-0123456789abcdefghijklmnop"})
    assert "0123456789" not in str(masked) and masked["api_key"] == ""
