"""`mpsd explain --env`: what a container's environment gets of each card, in the dialects that people already write.

Nothing of this machine is looked at: the cards are those that `--gpu` names.
"""

import re
from collections.abc import Mapping, Sequence

from rich.text import Text

from mpsd.containers.dialects.names import VARIABLES
from mpsd.containers.dialects.reading import read_dialect
from mpsd.containers.dialects.request import CardRequest, DialectRequest, InvalidDialect, Off, Reading
from mpsd.containers.dialects.variables import environment_in
from mpsd.model.client_limits import VISIBLE_DEVICES
from mpsd.model.gpu_facts import Card, GpuFacts
from mpsd.model.grants import Gpu
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.platform.console import ExitCode, answers, counted, print_json, problem_line
from mpsd.platform.limits_files import Limits
from mpsd.platform.yaml_files import name_of, read_bytes

_COUNTED = re.compile(r"([1-9][0-9]?)x(.+)", re.ASCII)  # 4xA10
_INDEX = re.compile(r"(?:^|,|PGPU=)([0-9]{1,2})(?=,|$)", re.ASCII)
_SUBJECT = "the environment"


def explain_environment(sources: Sequence[str], models: str, limits: Limits, *, as_json: bool) -> ExitCode:
    """Says what the environment gets, or everything that is wrong with it; InvalidInput where it cannot be read.

    sources: files and KEY=VALUE, as docker takes them. models: what `--gpu` says.
    """
    environment = _environment(sources)
    reading = read_dialect(environment, _machine(models, limits.facts, environment), limits.policy.compute)
    if as_json:
        print_json(_record(reading))
    else:
        _print(reading)
    return ExitCode.NO if isinstance(reading, InvalidDialect) else ExitCode.YES


def card_named(model: str, facts: GpuFacts) -> Card:
    """The card that `--gpu` names."""
    found = next((card for card in facts.cards if card.short.casefold() == model.casefold()), None)
    if found is None:
        known = ", ".join(card.short for card in facts.cards)
        remedy = f"write one of {known}; a card that is not listed works if its compute capability is (docs/policy.md)"
        problem = Problem("gpu-unknown", "--gpu", shown(model), "is not a card in gpus.yaml", remedy)
        raise InvalidInput("mpsd explain", [problem])
    return found


def _environment(sources: Sequence[str]) -> dict[str, str]:
    """As docker has it: KEY=VALUE on the command line beats files."""
    files = [_file(source) for source in sources if "=" not in source]
    words = [environment_in([source], shown(source), VARIABLES) for source in sources if "=" in source]
    return {name: value for part in (*files, *words) for name, value in part.items()}


def _file(source: str) -> dict[str, str]:
    subject = name_of(source)
    try:
        text = read_bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        value = f"byte 0x{error.object[error.start]:02x}"
        problem = Problem("not-utf-8", "the file", value, "is not UTF-8 text", "save the file as UTF-8")
        raise InvalidInput(subject, [problem]) from None
    return environment_in(text.split("\n"), subject, VARIABLES)


def _machine(models: str, facts: GpuFacts, environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """A machine with the cards that `--gpu` names: 4xA10 has four, A10 as many as the environment names.

    A UUID in the environment is one of its cards', whichever no index names.
    """
    if not models:
        known = ", ".join(card.short for card in facts.cards)
        problem = Problem(
            "gpu-unsaid",
            "--gpu",
            "",
            "is needed with --env",
            f"write one of {known}, or several of one, such as 4x{facts.cards[0].short}",
        )
        raise InvalidInput("mpsd explain", [problem])
    counted_models = _COUNTED.fullmatch(models)
    card = card_named(counted_models[2] if counted_models else models, facts)
    capability = facts.capability(card.compute_capability)
    assert capability is not None, "GpuFacts does not load without a row for every card"
    names = environment.get(VISIBLE_DEVICES, "").split(",")[:100]
    said = f"{','.join(names)},{environment.get('EGPU', '').replace(':', ',')[:2048]}"
    ordinals = {int(index) for index in _INDEX.findall(said)}
    uuids = list(dict.fromkeys(name for name in names if name.startswith("GPU-")))
    size = int(counted_models[1]) if counted_models else max(1, len(ordinals) + len(uuids), *(n + 1 for n in ordinals))
    free = [ordinal for ordinal in range(size) if ordinal not in ordinals]
    uuid_of = dict(zip(free, uuids, strict=False))
    return tuple(
        Gpu(uuid_of.get(ordinal, f"GPU-{ordinal}"), ordinal, card.name, card.memory_mib, card.sms, capability)
        for ordinal in range(size)
    )


def _record(reading: Reading) -> dict[str, object]:
    """One shape for every answer. dialect: null where nothing is asked, or where it is refused."""
    request = reading if isinstance(reading, DialectRequest) else None
    return {
        "object": _SUBJECT,
        "dialect": request.dialect.value if request else None,
        "admitted": not isinstance(reading, InvalidDialect),
        "remark": f"nothing is asked: {reading.why}" if isinstance(reading, Off) else "",
        "problems": [problem.record() for problem in reading.problems] if isinstance(reading, InvalidDialect) else [],
        "cards": [_card_record(card) for card in request.cards] if request else [],
    }


def _card_record(card: CardRequest) -> dict[str, object]:
    return {
        "gpu": card.gpu.label,
        "name": card.gpu.name,
        "memory_bytes": card.memory_bytes,
        "memory_mib": card.memory_mib,
        "thread_percent": card.thread_percent,
        "sms": _sms(card),
        "weight": card.weight,
        "policy": card.policy,
        "differs": list(card.differs),
    }


def _sms(card: CardRequest) -> int:
    return card.gpu.capability.sms_given(card.thread_percent, card.gpu.sms)


def _print(reading: Reading) -> None:
    out = answers()
    match reading:
        case Off(why=why):
            out.print(f"nothing is asked, and the container is left as it is: {why}")
        case InvalidDialect(problems=problems):
            out.print(
                Text.assemble((_SUBJECT, "bold"), " is ", ("refused", "bold red"), ", ", counted(problems, "red"))
            )
            for problem in problems:
                out.print(Text.assemble("  ", problem_line(problem)))
        case DialectRequest(dialect=dialect, cards=cards):
            out.print(Text.assemble((_SUBJECT, "bold"), f" asks in the words of {dialect.value}"))
            for card in cards:
                out.print(f"  {_words(card)}")
                for difference in card.differs:
                    out.print(Text(f"    {difference}", "dim"))


def _words(card: CardRequest) -> str:
    cap = "no cap on its threads"
    if card.thread_percent < 100:
        cap = f"{card.thread_percent} % of its threads, {_sms(card)} of {card.gpu.sms} SMs"
    return f"{card.gpu.label}, {card.gpu.name}: {card.memory_bytes} bytes ({card.memory_mib} MiB), {cap}"
