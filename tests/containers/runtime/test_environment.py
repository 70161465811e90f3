"""The environment of a bundle, and what a grant adds to it and is taken out again."""

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from mpsd.containers.dialects import names
from mpsd.containers.runtime import bundle, json_text
from mpsd.containers.runtime.bundle import BundleRecord
from mpsd.containers.runtime.client import Granted
from mpsd.containers.runtime.json_text import ContainerRefused

NAMES = st.sampled_from([*names.VARIABLES, "CUDA_MPS_PIPE_DIRECTORY", "PATH", "", "X"])
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
ENTRIES = st.lists(st.one_of(st.builds("{}={}".format, NAMES, TEXTS), TEXTS), max_size=8)
VARIABLES = st.dictionaries(NAMES.filter(bool), TEXTS, max_size=4)
MOUNTS = st.lists(st.sampled_from(["/run/mpsd/client", "/sim/a", "/sim/b"]), unique=True)


@given(ENTRIES)
def test_what_decides_is_read_in_one_way_or_refused(entries: list[str]) -> None:
    pairs = {tuple(entry.split("=", 1)) for entry in entries if "=" in entry}
    deciding = sorted(pair for pair in pairs if pair[0] in names.VARIABLES)
    try:
        script, found = bundle.dialect(entries)
    except ContainerRefused:
        assert len(dict(deciding)) < len(deciding)
        return
    assert script == ""
    assert sorted(found.items()) == deciding


@given(ENTRIES, VARIABLES)
def test_replaced_names_are_there_once_and_all_others_stay(
    entries: list[str], variables: dict[str, str]
) -> None:
    now = bundle.replaced(entries, variables)
    for name, value in variables.items():
        assert [entry for entry in now if bundle.name_of(entry) == name] == [f"{name}={value}"]
    others = [entry for entry in entries if bundle.name_of(entry) not in variables]
    assert now[: len(others)] == others


def _granted(variables: dict[str, str], mounts: list[str]) -> Granted:
    rows = [{"source": "/x", "inside": inside, "read_only": False} for inside in mounts]
    return Granted({"grant": "g", "environment": variables, "mounts": rows, "devices": []})


@given(ENTRIES, st.lists(st.tuples(VARIABLES, MOUNTS, st.booleans()), min_size=1, max_size=4))
def test_a_bundle_has_what_was_granted_last_once_whatever_was_killed_before(
    entries: list[str], turns: list[tuple[dict[str, str], list[str], bool]]
) -> None:
    """killed: after the record was written, and before config.json."""
    own = {"destination": "/own"}
    on_disk: dict[str, object] = {"process": {"env": entries}, "mounts": [own]}
    record = BundleRecord()
    hook: dict[str, object] = {"path": "/hook"}
    for variables, mounts, killed in turns:
        config = copy.deepcopy(on_disk)
        found = bundle.undo(config, record)
        assert sorted(config["process"]["env"]) == sorted(entries)
        assert config["mounts"] == [own]
        added = bundle.apply(config, _granted(variables, mounts), hook)
        record = bundle.record_in(bundle.written(bundle.merged(found, added)).encode())
        if not killed:
            on_disk = config
            assert [mount["destination"] for mount in config["mounts"]] == ["/own", *mounts]
            assert config["hooks"]["poststop"] == [hook]
    bundle.undo(on_disk, record)
    assert sorted(on_disk["process"]["env"]) == sorted(entries)
    assert on_disk["mounts"] == [own]


def test_what_a_person_changed_since_stays() -> None:
    config: dict[str, object] = {"process": {"env": ["A=1"]}}
    record = bundle.apply(config, _granted({"A": "2"}, []), {"path": "/hook"})
    config["process"] = {"env": ["A=3"]}
    bundle.undo(config, record)
    assert config["process"] == {"env": ["A=3"]}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON, st.sampled_from([None, 2]))
def test_json_is_read_and_written_as_others_do(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert json_text.read(f"\n{text} ".encode(), "it") == value
    assert json.loads(json_text.write(value, "it")) == value


@given(st.binary(max_size=20) | st.text('{}[]",:\\u019.eE-+ntf ').map(str.encode))
def test_whatever_is_no_json_is_refused(data: bytes) -> None:
    try:
        wanted = json.loads(
            data.decode("utf-8", "surrogateescape"), parse_constant=lambda text: 1 / 0
        )
    except (ValueError, ZeroDivisionError):
        try:
            json_text.read(data, "it")
        except ContainerRefused:
            return
        raise AssertionError("read what is no JSON") from None
    assert json_text.read(data, "it") == wanted
