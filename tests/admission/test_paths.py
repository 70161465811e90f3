"""Whether a path leads to another, as far as its text can say."""

import pytest

from mpsd.admission.rules.host import inside, reached

PATTERNS = ("/dev/nvidia*", "/run/mpsd", "/var/lib/kubelet/device-plugins")


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("/", PATTERNS),
        ("", PATTERNS),
        ("/dev", ("/dev/nvidia*",)),
        ("dev/", ("/dev/nvidia*",)),
        ("/dev/nvidia", ("/dev/nvidia*",)),
        ("/dev/nvidia0/x", ("/dev/nvidia*",)),
        ("/dev/nvidi", ()),
        ("/dev/dri", ()),
        ("/run", ("/run/mpsd",)),
        ("/var/run", ("/run/mpsd",)),
        ("/var/run/mpsd/gpu0", ("/run/mpsd",)),
        ("/var", ("/var/lib/kubelet/device-plugins",)),
        ("/run/mpsd-other", ()),
        ("/home/../dev", PATTERNS),
        ("/home/..", PATTERNS),
        ("/home/..x", ()),
        ("/DEV", ()),
    ],
)
def test_a_path_of_the_host_leads_to_what_is_above_and_below_it(path: str, places: tuple[str, ...]) -> None:
    assert reached(path, PATTERNS) == places


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/run/mpsd", "/run/mpsd"),
        ("/run/mpsd/client/", "/run/mpsd"),
        ("/run//x/../mpsd", "/run/mpsd"),
        ("/../../dev/nvidia0", "/dev/nvidia*"),
        ("/var/run/mpsd", "/run/mpsd"),
        ("/run", ""),
        ("/", ""),
        ("", ""),
        ("/data/run/mpsd", ""),
    ],
)
def test_a_path_inside_a_container_is_read_to_its_end(path: str, place: str) -> None:
    assert inside(path, PATTERNS) == place


def test_a_path_of_megabytes_is_followed_as_a_short_one_is() -> None:
    there_and_back = "/a" * 500_000 + "/.." * 500_000
    assert inside(f"{there_and_back}/dev/nvidia0", PATTERNS) == "/dev/nvidia*"
    assert inside(f"{there_and_back}/data", PATTERNS) == ""
    assert reached("/dev/" + "./" * 500_000 + "nvidia0", PATTERNS) == ("/dev/nvidia*",)
