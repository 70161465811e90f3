"""docker's and containerd's files with the runtime mpsd, and without it again."""

import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.containers.engines.configuration import CONFIGURATIONS, LAUNCHER, Configuration, Engine
from mpsd.model.problem import InvalidInput

DOCKER = CONFIGURATIONS[Engine.DOCKER]("/etc/docker/daemon.json", LAUNCHER)
CONTAINERD = CONFIGURATIONS[Engine.CONTAINERD]("/etc/containerd/config.toml", LAUNCHER)
PLUGINS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
RUNC = {"runtime_type": "io.containerd.runc.v2"}
AT = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes'

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_runtimes = st.dictionaries(st.text().filter(lambda name: name != "mpsd"), _values, max_size=3)
_others = st.dictionaries(st.text().filter(lambda name: name != "runtimes"), _values, max_size=4)
_documents = _others | st.builds(
    lambda others, runtimes: others | {"runtimes": runtimes}, _others, _runtimes
)


@st.composite
def _docker_texts(draw: st.DrawFn) -> str:
    indent = draw(st.sampled_from([None, 1, 2, 4, "\t"]))
    text = json.dumps(draw(_documents), indent=indent, ensure_ascii=draw(st.booleans()))
    return text + draw(st.sampled_from(["", "\n", "\n\n"]))


def _sections(plugin: str) -> list[str]:
    at = f'plugins."{plugin}"'
    type_line = 'runtime_type = "io.containerd.runc.v2"'
    return [
        f"[{at}.containerd.runtimes.runc]\n  {type_line}  # as Debian has it\n",
        f"[{at}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n",
        f"\n# ours since 2024\n[{at}.containerd.runtimes.nvidia]\n{type_line}\n",
        f'[{at}.cni]\n\tbin_dir = "/usr/lib/cni"\n',
        f'[{at}]\nsandbox_image = """\nregistry\n[not.a.table]\n"""\n',
        f'[{at}.containerd]\ndefault_runtime_name = "runc"\n\n',
        '[debug]\n  level = "warn" # "quoted"\n\n\n',
        '[[proxy_plugins.x]]\na = [1,\n  2,\n["z"]\n]\n',
        "# the end, without a table\n",
    ]


@st.composite
def _containerd_texts(draw: st.DrawFn) -> str:
    version = draw(st.sampled_from([1, 2, 3]))
    heads = [f"version = {version}\n", f"# managed\nversion={version}\nimports = []\n"]
    some = st.lists(st.sampled_from(_sections(PLUGINS[version])), unique=True)
    text = draw(st.sampled_from(heads)) + "".join(draw(some.flatmap(st.permutations)))
    return draw(st.sampled_from([text, text.rstrip("\n"), text.replace("\n", "\r\n")]))


_files = st.tuples(st.just(DOCKER), _docker_texts()) | st.tuples(
    st.just(CONTAINERD), _containerd_texts()
)


@given(_files)
def test_installed_and_taken_out_again_the_file_is_the_same_byte_for_byte(
    file: tuple[Configuration, str],
) -> None:
    configuration, text = file
    once = configuration.with_runtime(text)
    assert configuration.with_runtime(once) == once, "done twice it changes nothing"
    assert configuration.has_runtime(once)
    assert not configuration.has_runtime(text)
    assert configuration.without_runtime(once, [text]) == text


def test_a_file_that_was_not_there_is_gone_again() -> None:
    for one in (DOCKER, CONTAINERD):
        assert one.without_runtime(one.with_runtime(None), []) is None


@pytest.mark.parametrize(
    ("configuration", "text", "said"),
    [
        (DOCKER, '{"debug": true,}', "line 1, column "),
        (DOCKER, '{"debug": tru', "is not JSON"),
        (DOCKER, "[]", "is not an object"),
        (DOCKER, '{"a": 1, "a": 2}', 'has the key "a" twice in one object'),
        (DOCKER, '{"a": NaN}', "has NaN, which is not a number in JSON"),
        (DOCKER, '{"a": 1e999}', "has a number beyond all bounds"),
        (DOCKER, '{"a": ' + "[" * 100_000, "is nested too deep"),
        (DOCKER, '{"runtimes": ["runc"]}', 'runtimes is ["runc"]: is not an object'),
        (
            DOCKER,
            '{"runtimes": {"mpsd": {"path": "/opt/other"}}}',
            'runtimes.mpsd.path is "/opt/other": is not the launcher',
        ),
        (DOCKER, '{"runtimes": {"mpsd": {"runtimeType": "io.x"}}}', "is not the launcher"),
        (CONTAINERD, "version = ", "is not TOML: "),
        (CONTAINERD, "version = 4", "version is 4: is not supported"),
        (CONTAINERD, 'version = "2"', 'version is "2"'),
        (CONTAINERD, "version = 2\nplugins = 3", "plugins is 3: is not a table"),
        (
            CONTAINERD,
            'version = 2\nplugins = {"io.containerd.grpc.v1.cri" = {containerd = {}}}',
            "takes no further table at its end",
        ),
        (
            CONTAINERD,
            f'version = 2\n{AT}.mpsd.options]\nBinaryName = "/o"\n',
            'runtimes.mpsd.options.BinaryName is "/o": is not the launcher',
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_place_and_a_remedy(
    configuration: Configuration, text: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        configuration.with_runtime(text)
    assert said in str(refused.value)
    assert all(problem.remedy for problem in refused.value.problems)


# -- docker


def _without_runtimes(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "runtimes"}


@given(_docker_texts())
def test_every_other_key_stays_as_and_where_it_was(text: str) -> None:
    before, after = json.loads(text), json.loads(DOCKER.with_runtime(text))
    assert after["runtimes"].pop("mpsd") == {"path": LAUNCHER}
    assert list(after["runtimes"].items()) == list(before.get("runtimes", {}).items())
    assert list(after) == list(before | {"runtimes": {}})
    assert _without_runtimes(after) == _without_runtimes(before)


@given(_docker_texts(), st.text(), _values)
def test_what_others_wrote_since_stays_and_no_backup_undoes_it(
    text: str, key: str, value: object
) -> None:
    installed = json.loads(DOCKER.with_runtime(text))
    if key in installed:
        return
    left = DOCKER.without_runtime(json.dumps({**installed, key: value}), [text])
    assert left is not None
    said = json.loads(left)
    assert said.pop(key) == value
    assert said in (json.loads(text), _without_runtimes(json.loads(text)))


# -- containerd


def _runtimes_in(text: str) -> dict[str, Any]:
    document = tomllib.loads(text)
    plugin = document.get("plugins", {}).get(PLUGINS[document.get("version", 1)], {})
    runtimes: dict[str, Any] = plugin.get("containerd", {}).get("runtimes", {})
    return runtimes


@given(_containerd_texts())
def test_the_runtime_is_where_this_version_looks_for_it(text: str) -> None:
    before, after = _runtimes_in(text), _runtimes_in(CONTAINERD.with_runtime(text))
    entry = after.pop("mpsd")
    assert entry["runtime_type"] == "io.containerd.runc.v2"
    assert entry["options"]["BinaryName"] == LAUNCHER
    assert after == (before or {"runc": RUNC})


def _kept(text: str) -> str:
    return text


def _changed(text: str) -> str:
    return text.replace("    BinaryName", "    NoPivotRoot = true  # for the test\n    BinaryName")


@given(_containerd_texts(), st.sampled_from([_kept, _changed]))
def test_what_others_wrote_behind_it_stays_with_its_comments(
    text: str, change: Callable[[str], str]
) -> None:
    later = "\n# of the night shift\n[later]\n  key = 1  # why\n"
    installed = change(CONTAINERD.with_runtime(text))
    ended = text if text.endswith("\n") else text + "\n"
    assert CONTAINERD.without_runtime(installed + later, [text]) == ended + later


def test_whoever_came_since_keeps_the_runtime_runc() -> None:
    came = f'\n{AT}.kata]\nruntime_type = "io.containerd.kata.v2"\n'
    text = "version = 2\n"
    left = CONTAINERD.without_runtime(CONTAINERD.with_runtime(text) + came, [text])
    assert left is not None
    assert set(_runtimes_in(left)) == {"runc", "kata"}


def test_an_entry_in_one_line_is_left_to_whoever_wrote_it() -> None:
    text = f'version = 2\n{AT}]\nmpsd = {{options = {{BinaryName = "{LAUNCHER}"}}}}\n'
    with pytest.raises(InvalidInput, match="take it out of the file by hand"):
        CONTAINERD.without_runtime(text, [])
