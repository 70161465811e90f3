"""containerd's config.toml with the runtime mpsd, and without it again."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.containers.engines.configuration import CONFIGURATIONS, LAUNCHER, Engine
from mpsd.model.problem import InvalidInput

CONFIGURATION = CONFIGURATIONS[Engine.CONTAINERD]("/etc/containerd/config.toml", LAUNCHER)
PLUGINS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}


def _sections(plugin: str) -> list[str]:
    at = f'plugins."{plugin}"'
    return [
        (
            f'[{at}.containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"  # as'
            " Debian has it\n"
        ),
        f"[{at}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n",
        (
            f"\n# ours since 2024\n[{at}.containerd.runtimes.nvidia]\nruntime_type ="
            ' "io.containerd.runc.v2"\n'
        ),
        f'[{at}.cni]\n\tbin_dir = "/usr/lib/cni"\n',
        f'[{at}]\nsandbox_image = """\nregistry\n[not.a.table]\n"""\n',
        f'[{at}.containerd]\ndefault_runtime_name = "runc"\n\n',
        '[debug]\n  level = "warn" # "quoted"\n\n\n',
        '[[proxy_plugins.x]]\na = [1,\n  2,\n["z"]\n]\n',
        "# the end, without a table\n",
    ]


@st.composite
def _texts(draw: st.DrawFn) -> str:
    version = draw(st.sampled_from([1, 2, 3]))
    head = draw(
        st.sampled_from([f"version = {version}\n", f"# managed\nversion={version}\nimports = []\n"])
    )
    sections = draw(
        st.lists(st.sampled_from(_sections(PLUGINS[version])), unique=True).flatmap(st.permutations)
    )
    text = head + "".join(sections)
    end = draw(st.sampled_from(["keep", "bare", "windows"]))
    return (
        text.rstrip("\n")
        if end == "bare"
        else text.replace("\n", "\r\n")
        if end == "windows"
        else text
    )


def _runtimes(text: str) -> dict[str, Any]:
    document = tomllib.loads(text)
    plugin = document.get("plugins", {}).get(PLUGINS[document.get("version", 1)], {})
    runtimes: dict[str, Any] = plugin.get("containerd", {}).get("runtimes", {})
    return runtimes


@given(_texts())
def test_installed_and_taken_out_again_the_file_is_the_same_byte_for_byte(text: str) -> None:
    assert CONFIGURATION.without_runtime(CONFIGURATION.with_runtime(text), [text]) == text


@given(_texts())
def test_the_runtime_is_where_this_version_looks_for_it_and_the_others_are_as_before(
    text: str,
) -> None:
    before, after = _runtimes(text), _runtimes(CONFIGURATION.with_runtime(text))
    entry = after.pop("mpsd")
    assert entry["runtime_type"] == "io.containerd.runc.v2"
    assert entry["options"]["BinaryName"] == LAUNCHER
    assert after == (before or {"runc": {"runtime_type": "io.containerd.runc.v2"}})


@given(_texts())
def test_done_twice_it_changes_nothing(text: str) -> None:
    once = CONFIGURATION.with_runtime(text)
    assert CONFIGURATION.with_runtime(once) == once
    assert CONFIGURATION.has_runtime(once)
    assert not CONFIGURATION.has_runtime(text)


@given(_texts())
def test_what_others_wrote_behind_it_stays_with_its_comments(text: str) -> None:
    later = "\n# of the night shift\n[later]\n  key = 1  # why\n"
    left = CONFIGURATION.without_runtime(CONFIGURATION.with_runtime(text) + later, [text])
    assert left is not None
    ended = text if text.endswith("\n") else text + "\n"
    assert left == ended + later


@given(_texts())
def test_an_entry_that_others_have_changed_is_taken_out_all_the_same(text: str) -> None:
    later = "# of the night shift\n[later]\nkey = 1\n"
    changed = CONFIGURATION.with_runtime(text).replace(
        "    BinaryName", "    NoPivotRoot = true  # for the test\n    BinaryName"
    )
    left = CONFIGURATION.without_runtime(changed + later, [text])
    assert left is not None
    assert "mpsd" not in left
    assert left.endswith(later)
    assert all(line in left.split("\n") for line in text.split("\n"))
    assert _runtimes(left) == _runtimes(text)


def test_whoever_came_since_keeps_the_runtime_runc() -> None:
    came = (
        '\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]\nruntime_type ='
        ' "io.containerd.kata.v2"\n'
    )
    left = CONFIGURATION.without_runtime(
        CONFIGURATION.with_runtime("version = 2\n") + came, ["version = 2\n"]
    )
    assert left is not None
    assert set(_runtimes(left)) == {"runc", "kata"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = ", "is not TOML: "),
        ("version = 4", "version is 4: is not supported"),
        ('version = "2"', 'version is "2"'),
        ("version = 2\nplugins = 3", "plugins is 3: is not a table"),
        (
            'version = 2\nplugins = {"io.containerd.grpc.v1.cri" = {containerd = {}}}',
            "takes no further table at its end",
        ),
        (
            (
                "version = 2\n"
                '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.mpsd.options]\n'
                'BinaryName = "/o"\n'
            ),
            'runtimes.mpsd.options.BinaryName is "/o": is not the launcher',
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_place_and_a_remedy(
    text: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        CONFIGURATION.with_runtime(text)
    assert said in str(refused.value)
    assert all(problem.remedy for problem in refused.value.problems)


def test_an_entry_in_one_line_is_left_to_whoever_wrote_it() -> None:
    at = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes]'
    text = f'version = 2\n{at}\nmpsd = {{options = {{BinaryName = "{LAUNCHER}"}}}}\n'
    with pytest.raises(InvalidInput, match="take it out of the file by hand"):
        CONFIGURATION.without_runtime(text, [])
