"""Which bundles' programs may be root on the machine."""

from typing import Any

import pytest

from mpsd.containers.runtime.create import may_be_root
from mpsd.containers.runtime.json_text import ContainerRefused

MAPPED = {"containerID": 0, "hostID": 100_000, "size": 65_536}


def config(
    uid: object = 0, namespaces: tuple[str, ...] = ("pid", "mount"), **linux: object
) -> dict[str, Any]:
    kinds = [{"type": kind} for kind in namespaces]
    return {"process": {"user": {"uid": uid, "gid": 0}}, "linux": {"namespaces": kinds, **linux}}


@pytest.mark.parametrize(
    ("bundle", "may"),
    [
        pytest.param(config(), True, id="root without a user namespace"),
        pytest.param({}, True, id="nothing said, which is root"),
        pytest.param(config(uid=1000), False, id="another user"),
        pytest.param(
            config(namespaces=("user",), uidMappings=[MAPPED]), False, id="root mapped to another"
        ),
        pytest.param(
            config(1000, ("user",), uidMappings=[MAPPED | {"hostID": 0}]),
            True,
            id="root in the mapping",
        ),
        pytest.param(config(1000, ("user",)), True, id="a namespace that nobody describes"),
    ],
)
def test_root_of_the_machine_is_known_by_user_and_mapping(
    bundle: dict[str, object], may: bool
) -> None:
    assert may_be_root(bundle) is may


@pytest.mark.parametrize("uid", ["0", -1, True, 1.5, []])
def test_a_user_that_is_no_number_is_refused(uid: object) -> None:
    with pytest.raises(ContainerRefused, match="process: user: uid is"):
        may_be_root(config(uid=uid))
