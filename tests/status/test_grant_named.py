"""Whom a person means by a word: one, several, or nobody."""

from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.node_report import GrantReport
from mpsd.status.grant_options import meant, words


def grant(
    name: str, container: str = "", container_name: str = "", pod: str = "", command: str = "train"
) -> GrantReport:
    return GrantReport(
        id=name, container=container, container_name=container_name, pod=pod, command=command
    )


TRAIN = grant("g1", "3f2a" + "0" * 60, "train")
SERVE = grant("g2", "3f77" + "0" * 60, "serve")
PROGRAM = grant("3f99aa000000", command="python train.py")
POD = grant("uid", pod="default/train-0", command="default/train-0")
ALL = (TRAIN, SERVE, PROGRAM, POD)
IDS = st.text("abc", min_size=1, max_size=4)
GRANTS = st.lists(
    st.builds(grant, name=IDS, container=st.just("") | IDS, container_name=st.just("") | IDS),
    max_size=5,
    unique=True,
)


def test_an_id_its_beginning_and_a_name_all_mean_the_container() -> None:
    for word in (TRAIN.container, "3f2a", "train", "g1"):
        assert meant(ALL, word) == (TRAIN,)


def test_a_pod_is_meant_by_its_name_with_or_without_its_namespace() -> None:
    assert meant(ALL, "train-0") == meant(ALL, "default/train-0") == (POD,)


def test_a_container_whose_name_begins_another_s_id_is_meant_by_it() -> None:
    named = grant("g9", "ffff", "3f77")
    assert meant((*ALL, named), "3f77") == (named,)


def test_a_name_does_not_take_the_place_of_an_id_as_engines_show_it() -> None:
    assert meant((*ALL, grant("g9", "ffff", "3f7700000000")), "3f7700000000") == (SERVE,)


@given(GRANTS, st.text("abc", max_size=5))
def test_whoever_is_meant_has_the_word_and_what_is_written_in_full_is_found(
    grants: list[GrantReport], word: str
) -> None:
    found = meant(grants, word)
    assert set(found) <= set(grants)
    full = [
        one
        for one in grants
        if word in {one.container or one.id, one.container_name, one.id} and word
    ]
    for one in found:
        begins = any(each.startswith(word) for each in (one.id, one.container or one.id))
        assert word
        assert one in full or (not full and begins)
    assert bool(found) >= bool(full)


@given(GRANTS)
def test_every_word_that_is_offered_means_somebody(grants: list[GrantReport]) -> None:
    assert all(meant(grants, word) for word in words(grants))
