"""Which GPUs are joined: never one in use, always those that are wanted, and as they were written,
whoever reads it."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.domain import Domain, DomainKind, State, domains, regrouped
from mpsd.model.node_view import RECORD_VERSION, DomainRecord
from mpsd.mps import drain
from mpsd.mps.records import NodeDomains
from mpsd.platform import processes, records
from mpsd.platform.logs import logger
from mpsd.platform.run_directory import DomainFolder
from tests.model.worlds import GPUS, POLICY, UUIDS

FIVE = tuple(replace(GPUS[0], uuid=f"GPU-{n}", ordinal=n) for n in range(5))
ALL = tuple(gpu.uuid for gpu in FIVE)
some = st.sets(st.sampled_from(ALL))
groups = st.lists(st.sets(st.sampled_from(ALL), min_size=2), max_size=3).map(
    lambda each: tuple(map(tuple, each))
)


@given(joined=groups, listed=st.booleans(), wanted=some.filter(bool), held=some)
def test_gpus_are_joined_without_a_change_to_any_domain_in_use(
    joined: tuple[tuple[str, ...], ...], listed: bool, wanted: set[str], held: set[str]
) -> None:
    policy = replace(POLICY, domains=[[0, 1]] if listed else [])
    now = domains(FIVE, policy, joined)
    found = regrouped(wanted, now, held)
    if found is None:
        touched = [domain for domain in now if not wanted.isdisjoint(domain.gpus)]
        assert len(touched) > 1 or touched[0].kind is DomainKind.LISTED
        return
    then = domains(FIVE, policy, found)
    assert sorted(uuid for domain in then for uuid in domain.gpus) == sorted(ALL)
    assert any(wanted <= set(domain.gpus) for domain in then)
    changed = [domain for domain in now if domain not in then]
    assert all(
        held.isdisjoint(domain.gpus) and domain.kind is not DomainKind.LISTED for domain in changed
    )
    assert all(not wanted.isdisjoint(domain.gpus) for domain in changed)
    assert regrouped(wanted, then, held) is not None


INSTANCE = replace(GPUS[0], uuid="MIG-1", instance="mig7")


def test_domains_follow_a_new_layout_and_those_that_are_gone_count_until_their_record_is(
    tmp_path: Path,
) -> None:
    there = here(tmp_path)
    there.form(UUIDS, ())
    record = DomainRecord(
        RECORD_VERSION, "gpu0-1", UUIDS, State.READY, 0, "", None, (), 0, 0, 0, {}, kind="joined"
    )
    assert not there.ends(record)

    there.follow((INSTANCE, GPUS[1]))

    assert [domain.name for domain in there.now] == ["gpu1", "gpu0-mig7"]
    assert there.ends(record), "one of its GPUs is still here, in another domain"
    lost = replace(record, domain="gpu0", gpus=UUIDS[:1], kind="alone")
    there.keep_gone([lost])
    assert there.every == (*there.now, Domain("gpu0", UUIDS[:1]))
    assert (there.replaced(lost), there.ends(lost)) == (True, False), "programs are waited for"
    assert there.ends(replace(lost, state=State.DRAINED))
    before = there.every
    there.keep_gone([lost])
    assert there.every is before
    there.keep_gone([])
    assert there.every == there.now

    there.follow(GPUS)
    assert there.now == here(tmp_path).now, "what is joined on disk is joined again"


def test_what_the_policy_lists_is_apart_while_one_of_its_gpus_is_divided(tmp_path: Path) -> None:
    there = NodeDomains(tmp_path, GPUS, replace(POLICY, domains=[[0, 1]]), logger())
    listed = there.now
    there.follow((INSTANCE, GPUS[1]))
    assert [domain.name for domain in there.now] == ["gpu1", "gpu0-mig7"]
    assert (
        NodeDomains(tmp_path, there.gpus, replace(POLICY, domains=[[0, 1]]), logger()).now
        == there.now
    )
    there.follow(tuple(GPUS))
    assert there.now == listed


def here(folder: Path) -> NodeDomains:
    return NodeDomains(folder, GPUS, POLICY, logger())


def test_what_one_process_joins_another_reads_at_its_next_look(tmp_path: Path) -> None:
    agent, control = here(tmp_path), here(tmp_path)
    assert agent.form(UUIDS, ())
    assert [domain.name for domain in control.now] == ["gpu0", "gpu1"]
    control.look()
    assert control.now == agent.now == (Domain("gpu0-1", UUIDS, DomainKind.JOINED),)
    assert here(tmp_path).now == agent.now
    agent.divide(())
    control.look()
    assert [domain.kind for domain in control.now] == [DomainKind.ALONE, DomainKind.ALONE]
    assert not list(tmp_path.iterdir())


def test_gpus_of_a_grant_are_neither_joined_nor_divided(tmp_path: Path) -> None:
    agent = here(tmp_path)
    assert not agent.form(UUIDS, UUIDS[:1])
    assert agent.form(UUIDS, ())
    agent.divide(UUIDS[1:])
    assert agent.form(UUIDS[:1], UUIDS[1:])
    assert agent.joined == (UUIDS,)


def test_a_domain_that_is_drained_is_not_divided_and_one_that_never_serves_is(
    tmp_path: Path,
) -> None:
    agent = here(tmp_path)
    agent.form(UUIDS, ())
    folder = DomainFolder(tmp_path / "gpu0-1")
    drain.ask(folder, "cordoned")
    agent.divide(())
    assert agent.joined == (UUIDS,)
    drain.withdraw(folder)
    agent.divide(())
    assert not agent.joined


def test_a_file_that_was_removed_or_damaged_is_written_again(tmp_path: Path) -> None:
    agent = here(tmp_path)
    agent.form(UUIDS, ())
    for damage in (lambda path: path.unlink(), lambda path: path.write_text("{")):
        damage(tmp_path / "domains.json")
        agent.keep()
        assert here(tmp_path).joined == (UUIDS,)


def test_where_the_file_cannot_be_read_the_domains_are_those_of_control(tmp_path: Path) -> None:
    past = (RECORD_VERSION, "gpu0-1", UUIDS, State.READY, 0.0, "", None, (), 0, 0, 0.0, {})
    record = DomainRecord(*past, boot_id=processes.boot_id(), kind=DomainKind.JOINED)
    (tmp_path / "gpu0-1").mkdir()
    records.write(tmp_path / "gpu0-1" / "record.json", record)
    (tmp_path / "domains.json").write_text("{")
    agent = here(tmp_path)
    assert agent.joined == (UUIDS,)
    agent.keep()
    assert here(tmp_path).joined == (UUIDS,)


def test_what_another_boot_joined_is_over(tmp_path: Path) -> None:
    here(tmp_path).form(UUIDS, ())
    path = tmp_path / "domains.json"
    path.write_text(
        path.read_text().split(',\n "crc32"')[0].replace(processes.boot_id(), "another") + "}"
    )
    assert not here(tmp_path).joined


def test_a_domain_is_replaced_once_its_gpus_are_of_another(
    tmp_path: Path,
) -> None:
    agent = here(tmp_path)
    past = (RECORD_VERSION, "gpu0", UUIDS[:1], State.READY, 0.0, "", None, (), 0, 0, 0.0, {})
    alone = DomainRecord(*past, kind=DomainKind.ALONE)
    joined = replace(alone, gpus=UUIDS, kind=DomainKind.JOINED)
    assert [agent.replaced(one) for one in (alone, joined)] == [False, True]
    agent.form(UUIDS, ())
    assert [agent.replaced(one) for one in (alone, joined, replace(alone, kind=""))] == [
        True,
        False,
        False,
    ]
