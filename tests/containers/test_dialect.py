"""An environment asks in one dialect, and whatever is in it the answer is one of three."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.containers.dialects.names import VARIABLES
from mpsd.containers.dialects.parsing import environment_in, read_dialect
from mpsd.containers.dialects.request import MIB, DialectRequest, InvalidDialect, Off
from mpsd.model.cgpu_policies import POLICIES
from mpsd.model.policy import CardCompute, Compute
from tests.containers.dialect_machine import NATIVE, machine, problems

CGPU = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}
EGPU = {"AMP_VGPU_ENABLE": "1", "GPU_MEM_PER_DEVICE": "2000000000"}
CTYUN = {"EGPU": "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10"}


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (CGPU | CTYUN, ["cGPU", "EGPU"]),
        (EGPU | CTYUN, ["eGPU", "EGPU"]),
        (CGPU | {"GPU_MEM_PER_DEVICE": "2000000000"}, ["cGPU", "eGPU"]),
        (CGPU | {"AMP_VGPU_ENABLE": "1", "ALIYUN_COM_GPU_SCHD_WEIGHT": "2"}, ["cGPU", "eGPU"]),
        (CGPU | CTYUN | {"GPU_UTIL_PER_DEVICE": "50"}, ["cGPU", "eGPU", "EGPU"]),
    ],
)
def test_two_dialects_at_once_are_an_error_that_names_both(
    environment: dict[str, str], named: list[str]
) -> None:
    (problem,) = problems(machine(15109), **environment)
    assert problem.rule == "two-dialects"
    assert all(f"{dialect} (" in problem.message for dialect in named)


@pytest.mark.parametrize("value", ["6\n", "6\nALIYUN_COM_GPU_MEM_DEV=1", "6 ", "\u0666"])
def test_a_value_that_is_no_plain_number_is_refused(value: str) -> None:
    name = "ALIYUN_COM_GPU_MEM_CONTAINER"
    (problem,) = problems(machine(15109), **(CGPU | {name: value}))
    assert problem.where == name


@pytest.mark.parametrize("off", [{"ALIYUN_COM_GPU_MEM_CONTAINER": "0"}, {"AMP_VGPU_ENABLE": "0"}])
def test_a_dialect_that_is_turned_off_stands_beside_another(off: dict[str, str]) -> None:
    assert isinstance(read_dialect(CTYUN | off, machine(15109), NATIVE), DialectRequest)


NUMBERS = st.one_of(
    st.integers(-1, 200).map(str),
    st.integers(0, 2**70).map(str),
    st.sampled_from(["", "x", "٣", "0"]),
)
LISTS = st.lists(NUMBERS, max_size=5).map(",".join)
DEVICES = st.sampled_from(["0", "1", "2", "all", "void", "none", "", "GPU-00000001-uuid"])
CARDS = st.builds("PGPU={},MEM={},WEIGHT={}".format, NUMBERS, NUMBERS, NUMBERS)
EGPU_TEXTS = st.lists(CARDS, max_size=3).map(
    lambda cards: ":".join(["POLICY=0,ONLINE=0,TYPE=DOCKER", *cards])
)
TEXTS = {
    "NVIDIA_VISIBLE_DEVICES": st.lists(DEVICES, max_size=3).map(",".join),
    "ALIYUN_COM_GPU_MEM_CONTAINER": LISTS,
    "AMP_VGPU_ENABLE": st.sampled_from(["1", "1", "0", "x"]),
    "EGPU": EGPU_TEXTS,
}
WRITTEN = {name: st.one_of(TEXTS.get(name, NUMBERS), st.text(max_size=20)) for name in VARIABLES}
SOUND = st.sampled_from(
    [{"NVIDIA_VISIBLE_DEVICES": "0"} | words for words in (CGPU, EGPU, CTYUN, {})]
)
SEVERAL = st.sets(st.sampled_from(VARIABLES), max_size=2)
OTHERS = SEVERAL.flatmap(
    lambda names: st.fixed_dictionaries({name: WRITTEN[name] for name in sorted(names)})
)
SOME = st.builds(lambda sound, others: sound | others, SOUND, OTHERS)
BOUNDS = st.integers(1, 100)
OWN = st.builds(CardCompute, st.sampled_from(sorted(POLICIES)), BOUNDS) | st.builds(
    CardCompute, st.sampled_from([1, 2, 4, 5]), st.none()
)
OWNERS = st.builds(
    lambda every, cards: Compute(every.policy, every.max_inst, cards),
    OWN,
    st.dictionaries(st.sampled_from(["0", "1", "2"]), OWN),
)


@given(SOME, st.sampled_from([0, 1, 2, 3]), st.integers(1, 3).map(lambda power: 33**power), OWNERS)
def test_whatever_is_written_the_answer_is_one_of_three_and_no_card_gives_more_than_it_has(
    environment: dict[str, str], cards: int, memory_mib: int, compute: Compute
) -> None:
    reading = read_dialect(environment, machine(memory_mib, cards), compute)
    match reading:
        case Off(why=why):
            assert why.isprintable()
        case InvalidDialect(problems=found):
            assert found
            assert all(problem.where and problem.message and problem.remedy for problem in found)
            assert all(str(problem).isprintable() for problem in found)
        case DialectRequest(cards=asked):
            assert asked
            assert len({card.gpu.uuid for card in asked}) == len(asked) <= cards
            for card in asked:
                assert 0 < card.memory_bytes <= memory_mib * MIB
                assert 0 < card.memory_mib <= min(memory_mib, card.memory_bytes // MIB)
                assert 1 <= card.thread_percent <= 100
                assert 0 <= card.reserved_percent <= 100
                assert card.reserved_percent == 0 or card.thread_percent <= card.reserved_percent


@given(st.integers(2000, 200_000), st.integers(1, 400), st.integers(1, 400), st.integers(0, 300))
def test_a_proportion_is_exact_and_refused_only_beyond_the_card_or_a_context(
    memory_mib: int, container: int, dev: int, reserved_mib: int
) -> None:
    share = {"ALIYUN_COM_GPU_MEM_CONTAINER": str(container), "ALIYUN_COM_GPU_MEM_DEV": str(dev)}
    switch = {"AMP_VGPU_ENABLE": "1", "ALIYUN_COM_GPU_MEM_RESERVED": str(reserved_mib)}
    for environment, kept_bytes in ((share, 0), (share | switch, reserved_mib * MIB)):
        memory_bytes = memory_mib * MIB * container // dev - kept_bytes
        match read_dialect(environment, machine(memory_mib), NATIVE):
            case DialectRequest(cards=(card,)):
                assert card.memory_bytes == memory_bytes <= memory_mib * MIB
            case InvalidDialect(problems=(problem,)):
                over = memory_bytes > memory_mib * MIB
                assert problem.rule == ("memory-over-card" if over else "memory-below-context")
            case other:
                pytest.fail(f"{other}")


def test_an_env_file_is_read_as_docker_reads_it() -> None:
    lines = ["# a comment", "", "  A=1\r", 'B="2"', "C=", "D", "E=x=y", "A=3 "]
    assert environment_in(lines, "a file", VARIABLES) == {
        "A": "3 ",
        "B": '"2"',
        "C": "",
        "E": "x=y",
    }
