"""Who may read what mpsd tells on a port."""

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.platform.rules.readers import (
    KEPT_S,
    NOT_KNOWN,
    ReaderVerdict,
    User,
    Verdicts,
    access_review,
    bearer_token,
    is_allowed,
    is_own_host,
    reviewed_user,
    token_review,
)

MAY_READ = ReaderVerdict(200)
TOKEN = "eyJhbGciOi.secret.token"
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.1.2.3:1", "localhost", "LOCALHOST:80", "[::1]:9447"]
)
def test_a_host_that_is_an_address_or_localhost_is_our_own(host: str) -> None:
    assert is_own_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":9447",
        "evil.example:9447",
        "localhost.evil.example:9447",
        "127.0.0.1.evil.example",
        "127.0.0.1:9447.evil.example",
        "localhost:9447:1",
        "localhost:",
        "127.0.0.1:x",
        "::1",
        "[127.0.0.1]:1",
        "[localhost]:1",
        "[::1]evil.example:1",
        "127.0.0.1@evil.example",
        "2130706433",
    ],
)
def test_any_other_host_is_a_strangers_name(host: str) -> None:
    assert not is_own_host(host)


@given(st.text(max_size=30))
def test_no_text_is_an_own_host_unless_it_is_localhost_or_an_address(host: str) -> None:
    if is_own_host(host):
        name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
        assert name.lower() == "localhost" or ipaddress.ip_address(name)


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Bearer ", ""), ("Basic abc", "")],
)
def test_only_a_bearer_token_is_a_token(header: str, token: str) -> None:
    assert bearer_token(header) == token


def test_the_owner_of_a_token_is_asked_about_as_the_api_server_told_him() -> None:
    told = {"uid": "u-1", "groups": ["a", "b"], "extra": {"scopes": ["x"]}}
    user = {"username": "prometheus", **told}
    found = reviewed_user({**token_review(TOKEN), "status": {"authenticated": True, "user": user}})
    assert found == User("prometheus", "u-1", ("a", "b"), {"scopes": ["x"]})
    path = {"path": "/metrics", "verb": "get"}
    wanted = {"user": "prometheus", **told, "nonResourceAttributes": path}
    assert access_review(found, "/metrics")["spec"] == wanted


@given(st.dictionaries(st.sampled_from(["status", "spec", "kind"]), ANY, max_size=3))
def test_whatever_is_no_plain_yes_lets_nobody_in(answer: dict[str, Any]) -> None:
    status = answer.get("status")
    if not isinstance(status, dict) or status.get("authenticated") is not True:
        assert reviewed_user(answer) is None
    if not isinstance(status, dict) or status.get("allowed") is not True:
        assert not is_allowed(answer)


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": True},
        {"authenticated": True, "user": {"username": ""}},
        {"user": {"username": "a"}},
    ],
)
def test_a_token_of_nobody_has_no_owner(status: dict[str, Any]) -> None:
    assert reviewed_user({"status": status}) is None


def test_who_is_both_allowed_and_denied_may_not_read() -> None:
    assert is_allowed({"status": {"allowed": True}})
    assert not is_allowed({"status": {"allowed": True, "denied": True}})
    assert not is_allowed({"status": {"allowed": 1}})


@pytest.mark.parametrize(
    "verdict", [MAY_READ, NOT_KNOWN, User("a").verdict("/metrics", allowed=False)]
)
def test_an_answer_counts_for_a_minute_from_when_it_was_asked_and_no_longer(verdict: Any) -> None:
    verdicts = Verdicts()
    assert verdicts.known(TOKEN, "/metrics", 100.0) is None
    verdicts.keep(TOKEN, "/metrics", verdict, 100.0)
    assert verdicts.known(TOKEN, "/metrics", 100.0 + KEPT_S - 0.1) == verdict
    assert verdicts.known(TOKEN, "/metrics", 100.0 + KEPT_S) is None


def test_tokens_that_somebody_makes_up_do_not_fill_the_memory_and_the_newest_answers_stay() -> None:
    verdicts = Verdicts()
    for number in range(5000):
        verdicts.keep(str(number), "/metrics", NOT_KNOWN, float(number) / 1000)
    known = [number for number in range(5000) if verdicts.known(str(number), "/metrics", 5.0)]
    assert known == list(range(5000 - 1024, 5000))


def test_tokens_that_somebody_makes_up_push_no_readers_answer_out() -> None:
    verdicts = Verdicts()
    verdicts.keep(TOKEN, "/metrics", MAY_READ, 0.0)
    for number in range(5000):
        verdicts.keep(str(number), "/metrics", NOT_KNOWN, 1.0)
    assert verdicts.known(TOKEN, "/metrics", 2.0) == MAY_READ


def test_what_is_kept_holds_no_token() -> None:
    verdicts = Verdicts()
    verdicts.keep(TOKEN, "/metrics", MAY_READ, 0.0)
    assert TOKEN not in repr(vars(verdicts))
