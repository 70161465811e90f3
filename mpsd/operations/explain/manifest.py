"""`mpsd explain`: what the objects in a manifest, or a container's environment, get of a GPU.

Nothing of this machine is looked at: the cards are those that `--gpu` names.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
from rich.text import Text

from mpsd.admission.rules.claims import asked_of, wrong_in_claim
from mpsd.admission.rules.verdict import AdmissionVerdict, Claims, claims_in, review
from mpsd.containers.dialects.names import VARIABLES
from mpsd.containers.dialects.parsing import environment_in, read_dialect
from mpsd.containers.dialects.request import (
    CardRequest,
    DialectRequest,
    InvalidDialect,
    Off,
    Reading,
)
from mpsd.model.client_limits import (
    BELOW_NORMAL,
    NVIDIA_VISIBLE_DEVICES,
    client_priority,
    environment,
    priority_reason,
)
from mpsd.model.container import Role
from mpsd.model.gpu_facts import Capability, Card, GpuFacts
from mpsd.model.grants import Gpu
from mpsd.model.pod import CLAIM, CLAIM_TEMPLATE
from mpsd.model.problem import InvalidInput, Problem, shown, shown_name
from mpsd.model.quantity import gib
from mpsd.model.request import ContainerRequest, client_limit
from mpsd.platform.command_line import LIMITS, OUTPUT, option, takes
from mpsd.platform.console import (
    ExitCode,
    Format,
    answers,
    counted,
    print_invalid,
    print_json,
    problem_line,
)
from mpsd.platform.limits_files import Limits, load_limits
from mpsd.platform.rules.kubernetes_objects import objects_in
from mpsd.platform.settings import LIMITS_DIRECTORY, read_settings
from mpsd.platform.yaml_files import name_of, read_bytes, read_yaml

# where a pod finds its domain's socket, whichever domain that is
CLIENT_DIRECTORY = "/run/mpsd/client"
_COUNTED = re.compile(r"([1-9][0-9]?)x(.+)", re.ASCII)  # 4xA10
_MOST_CARDS = 16  # of a machine
_SUBJECT = "the environment"
_PROGRAM = "mpsd explain"


@takes(
    option(
        "-f",
        "--filename",
        dest="files",
        action="append",
        metavar="FILE",
        help="A manifest; - is standard input.",
    ),
    option(
        "-e",
        "--env",
        action="append",
        metavar="FILE|KEY=VALUE",
        help="A container's environment instead: an --env-file of docker, or a variable.",
    ),
    OUTPUT,
    LIMITS,
    option(
        "--gpu",
        metavar="MODEL",
        help="Assume this GPU: H200, 'A100 1g.10gb' for a MIG instance, 4xA10 with --env.",
    ),
)
def explain(
    *,
    files: list[str] | None = None,
    env: list[str] | None = None,
    output: Format = Format.TEXT,
    limits: str | None = None,
    gpu: str = "",
) -> None:
    """Say of every object in a manifest what it gets of a GPU, or everything that keeps it from
    being admitted.

    Needs no GPU and no cluster. Exits with 1 when an object is refused, with 2 when a file cannot
    be read; what is in the others is said all the same.

        mpsd explain -f job.yaml
        mpsd explain -f job.yaml --gpu H200
        mpsd explain -f job.yaml --gpu "A100 1g.10gb"
        kubectl get pods -A -o yaml | mpsd explain -f - -o json
        mpsd explain -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15 --gpu T4
    """
    if bool(files) is bool(env):
        message = "one of them is needed, and not both"
        remedy = "leave one out" if env else "write one of them"
        raise InvalidInput.of(_PROGRAM, "one-source", "-f or --env", "", message, remedy)
    settings = read_settings({"limits": LIMITS_DIRECTORY}, {"limits": limits}, os.environ)
    chosen = load_limits(settings["limits"])
    if env:
        sys.exit(_explain_environment(env, gpu, chosen, as_json=output is Format.JSON))
    card = None
    if gpu:
        chosen = replace(chosen, facts=facts_of(gpu, chosen.facts))
        (card,) = chosen.facts.cards
    verdicts, unreadable = _verdicts(files or (), chosen)
    if output is Format.JSON:
        unread = [AdmissionVerdict(wrong.subject, wrong.problems) for wrong in unreadable]
        print_json([_record(verdict, chosen, card) for verdict in [*verdicts, *unread]])
    else:
        for verdict in verdicts:
            _print(verdict, chosen, card)
    for wrong in unreadable:
        print_invalid(wrong)
    if unreadable:
        sys.exit(ExitCode.MISUSE)
    sys.exit(ExitCode.of(all(verdict.admitted for verdict in verdicts)))


def facts_of(model: str, facts: GpuFacts) -> GpuFacts:
    """The facts with that card alone, or that MIG instance: `A100 1g.10gb`."""
    short, _blank, size = model.replace(":", " ").partition(" ")
    found = next((card for card in facts.cards if card.short.casefold() == short.casefold()), None)
    if found is None:
        known = ", ".join(card.short for card in facts.cards)
        others = "a card that is not listed works if its compute capability is (docs/policy.md)"
        remedy = f"write one of {known}; {others}"
        message = "is not a card in gpus.yaml"
        raise InvalidInput.of(_PROGRAM, "gpu-unknown", "--gpu", shown(short), message, remedy)
    profile = next((row for row in facts.profiles(found) if row.profile == size.casefold()), None)
    if size and profile is None:
        known = ", ".join(row.profile for row in facts.profiles(found)) or f"{found.short} alone"
        message = f"is not a MIG instance of {found.short} in gpus.yaml"
        remedy = f"write one of {known}"
        raise InvalidInput.of(_PROGRAM, "mig-unknown", "--gpu", shown(size), message, remedy)
    return facts.of_only(found, profile)


def _print_refused(name: str, problems: Sequence[Problem]) -> None:
    out = answers()
    refused = ("refused", "bold red")
    out.print(Text.assemble((name, "bold"), " is ", refused, ", ", counted(problems, "red")))
    for problem in problems:
        out.print(Text.assemble("  ", problem_line(problem)))


# -- manifests


def _verdicts(
    files: Sequence[str], limits: Limits
) -> tuple[list[AdmissionVerdict], list[InvalidInput]]:
    found = list[object]()
    unreadable = list[InvalidInput]()
    for file in files:
        try:
            documents = read_yaml(file)
        except InvalidInput as error:
            unreadable.append(error)
            continue
        if not documents:
            remedy = "write a Kubernetes object in it"
            empty = Problem("no-object", "the file", "", "holds no object", remedy)
            unreadable.append(InvalidInput(name_of(file), [empty]))
        found.extend(document.value for document in documents)
    claims = claims_in(found)
    things = [thing for document in found for thing in objects_in(document)]
    return [_judged(thing, limits, claims) for thing in things], unreadable


def _judged(thing: object, limits: Limits, claims: Claims) -> AdmissionVerdict:
    verdict = review(thing, limits.policy, limits.facts, claims)
    if not isinstance(thing, dict) or thing.get("kind") not in (CLAIM, CLAIM_TEMPLATE):
        return verdict
    wrong = wrong_in_claim(thing, thing["kind"], limits.policy, limits.facts)
    problems = (*verdict.problems, *wrong.problems)
    warnings = (*verdict.warnings, *wrong.warnings)
    if problems:
        return replace(verdict, problems=problems, warnings=warnings, remark="")
    remark = verdict.remark
    if asked := asked_of(thing, thing["kind"], limits.policy):
        remark = f"asks for {asked}"
    return replace(verdict, warnings=warnings, remark=remark)


def _record(verdict: AdmissionVerdict, limits: Limits, card: Card | None) -> dict[str, object]:
    """card: the one that the containers are to run on; None for any."""
    said: dict[str, object] = msgspec.to_builtins(verdict)
    priority, _why = _priority(verdict, limits)
    requests = verdict.requests
    return {
        "object": said.pop("object_name"),
        "admitted": verdict.admitted,
        **said,
        "limits": [_limit_record(request, limits, card) for request in requests],
        "priority": priority,
        "environment": {one.container: _variables(one, priority, limits) for one in requests},
    }


def _limit_record(
    request: ContainerRequest, limits: Limits, card: Card | None
) -> dict[str, object]:
    """What MPS is set to and, on one model of GPU, what that leaves for the program once its CUDA
    context is there."""
    limit = client_limit(request, limits.policy)
    record: dict[str, object] = {"container": request.container, **msgspec.to_builtins(limit)}
    if card:
        capability = _capability(card, limits.facts)
        sms = capability.sms_given(limit.thread_percent, card.sms)
        cost_mib = capability.context_cost_mib(sms)
        left_mib = limit.memory_mib - cost_mib
        record |= {"gpu": card.name, "sms": sms, "context_mib": cost_mib, "left_mib": left_mib}
    return record


def _capability(card: Card, facts: GpuFacts) -> Capability:
    capability = facts.capability(card.compute_capability)
    assert capability is not None, "GpuFacts does not load without a row for every card"
    return capability


def _variables(request: ContainerRequest, priority: int | None, limits: Limits) -> dict[str, str]:
    return environment(client_limit(request, limits.policy), CLIENT_DIRECTORY, priority)


def _priority(verdict: AdmissionVerdict, limits: Limits) -> tuple[int | None, str]:
    """The priority, None where it is given none or only a cluster knows; and a sentence, empty
    where the policy gives no priorities, and where a claim says it all."""
    pod = verdict.priority
    policy = limits.policy.gpu_priority
    if any(request.below_normal for request in verdict.requests):
        return BELOW_NORMAL, ""
    if pod is None or policy.by == "none":
        return None, ""
    if policy.by == "priority-class" and pod.value is None and pod.class_name:
        named = f"follows from the value of its PriorityClass {shown_name(pod.class_name)}"
        below = f"below normal where that is under {policy.below_normal_under}"
        return None, f"its priority on a GPU {named}: {below}"
    priority = client_priority(pod, policy)
    word = "below normal" if priority == BELOW_NORMAL else "normal"
    return priority, f"its priority on a GPU is {word}: {priority_reason(pod, policy)}"


def _print(verdict: AdmissionVerdict, limits: Limits, card: Card | None) -> None:
    out = answers()
    if verdict.admitted:
        title = Text.assemble((verdict.object_name, "bold"), " is ", ("admitted", "green"))
        out.print(Text(": ").join(filter(None, (title, Text(verdict.remark)))))
    else:
        _print_refused(verdict.object_name, verdict.problems)
    priority, why = _priority(verdict, limits)
    for request in verdict.requests:
        out.print(f"  {_sentence(request, limits)}")
        if card:
            given = _limit_record(request, limits, card)
            sms = f"{given['sms']} of {card.sms} SMs"
            context = f"a context takes {given['context_mib']} MiB"
            out.print(
                f"    on {card.name} that is {sms}; {context} and leaves {given['left_mib']} MiB"
            )
        for name, value in _variables(request, priority, limits).items():
            out.print(Text(f"    {name}={value}", "dim"))
    if why:
        out.print(Text(f"  {why}"))
    if added_s := verdict.grace_added_s:
        out.print(f"  mpsd adds up to {added_s} s to its terminationGracePeriodSeconds")
    for problem in verdict.warnings:
        out.print(Text.assemble("  ", ("warning ", "yellow"), problem_line(problem)))
    for problem in verdict.noted:
        out.print(Text.assemble("  ", ("note ", "dim"), problem_line(problem)))


_ROLES = {
    Role.MAIN: "container",
    Role.INIT: "init container",
    Role.SIDECAR: "sidecar",
    Role.EPHEMERAL: "container",
}


def _sentence(request: ContainerRequest, limits: Limits) -> str:
    gpus = "one GPU" if request.gpus == 1 else f"each of {request.gpus} GPUs"
    percent = client_limit(request, limits.policy).thread_percent
    share = "all" if percent == 100 else f"{percent} %"
    held = "reserved for it"
    if request.thread_percent is None:
        held = "none of them reserved"
    elif percent > request.thread_percent:
        held = f"{request.thread_percent} % {held}"
    return (
        f"{_ROLES[request.role]} {request.container} gets {gib(request.memory_mib)} GiB of {gpus}, "
        f"CUDA's own context included, and {share} of its threads, {held}"
    )


# -- the environment of a container


def _explain_environment(
    sources: Sequence[str], models: str, limits: Limits, *, as_json: bool
) -> ExitCode:
    """sources: files and KEY=VALUE, as docker takes them; KEY=VALUE beats files. InvalidInput."""
    variables = dict[str, str]()
    for file in sources:
        if "=" not in file:
            variables |= environment_in(_lines(file), name_of(file), VARIABLES)
    for variable in sources:
        if "=" in variable:
            variables |= environment_in([variable], shown(variable), VARIABLES)
    cards = _cards(models, limits.facts, variables)
    reading = read_dialect(variables, cards, limits.policy.compute)
    if as_json:
        print_json(_reading_record(reading))
    else:
        _print_reading(reading)
    return ExitCode.of(not isinstance(reading, InvalidDialect))


def _lines(file: str) -> list[str]:
    try:
        return read_bytes(file).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        value = f"byte 0x{error.object[error.start]:02x}"
        message = "is not UTF-8 text"
        remedy = "save the file as UTF-8"
        problem = Problem("not-utf-8", "the file", value, message, remedy)
        raise InvalidInput(name_of(file), [problem]) from None


def _cards(models: str, facts: GpuFacts, variables: Mapping[str, str]) -> tuple[Gpu, ...]:
    """models: 4xA10 are four cards, A10 as many as the environment may name. A UUID in the
    environment is one of its cards', whichever no index names."""
    if not models:
        known = ", ".join(card.short for card in facts.cards)
        remedy = f"write one of {known}, or several of one, such as 4x{facts.cards[0].short}"
        message = "is needed with --env"
        raise InvalidInput.of(_PROGRAM, "gpu-unsaid", "--gpu", "", message, remedy)
    names = variables.get(NVIDIA_VISIBLE_DEVICES, "").split(",")
    uuids = [name for name in dict.fromkeys(names) if name.startswith(("GPU-", "MIG-"))]
    size = 1
    if several := _COUNTED.fullmatch(models):
        size = int(several[1])
        models = several[2]
    elif uuids or "EGPU" in variables or any(map(str.isdecimal, names)):
        size = _MOST_CARDS
    return tuple(_numbered(facts_of(models, facts), size, names, uuids))


def _numbered(
    facts: GpuFacts, size: int, names: Sequence[str], uuids: Sequence[str]
) -> Iterator[Gpu]:
    card = facts.cards[0]
    capability = _capability(card, facts)
    unnamed = iter(uuids)
    for ordinal in range(size):
        uuid = f"GPU-{ordinal}"
        if str(ordinal) not in names:
            uuid = next(unnamed, uuid)
        yield Gpu(uuid, ordinal, card.name, card.memory_mib, card.sms, capability)


def _reading_record(reading: Reading) -> dict[str, object]:
    """dialect: null where nothing is asked, or where it is refused."""
    record: dict[str, object] = {
        "object": _SUBJECT,
        "dialect": None,
        "admitted": True,
        "remark": "",
        "problems": (),
        "cards": [],
    }
    match reading:
        case Off(why=why):
            record["remark"] = f"nothing is asked: {why}"
        case InvalidDialect(problems=problems):
            record |= {"admitted": False, "problems": problems}
        case DialectRequest(dialect=dialect, cards=cards):
            record |= {"dialect": dialect.value, "cards": [_card_record(card) for card in cards]}
    return record


def _card_record(card: CardRequest) -> dict[str, object]:
    return {
        "gpu": card.gpu.label,
        "name": card.gpu.name,
        "memory_bytes": card.memory_bytes,
        "memory_mib": card.memory_mib,
        "thread_percent": card.thread_percent,
        "sms": card.gpu.capability.sms_given(card.thread_percent, card.gpu.sms),
        "weight": card.weight,
        "policy": card.policy,
        "differs": card.differs,
    }


def _print_reading(reading: Reading) -> None:
    out = answers()
    match reading:
        case Off(why=why):
            out.print(f"nothing is asked, and the container is left as it is: {why}")
        case InvalidDialect(problems=problems):
            _print_refused(_SUBJECT, problems)
        case DialectRequest(dialect=dialect, cards=cards):
            out.print(Text.assemble((_SUBJECT, "bold"), f" asks in the words of {dialect.value}"))
            for card in cards:
                cap = "no cap on its threads"
                if card.thread_percent < 100:
                    sms = f"{_card_record(card)['sms']} of {card.gpu.sms} SMs"
                    cap = f"{card.thread_percent} % of its threads, {sms}"
                memory = f"{card.memory_bytes} bytes ({card.memory_mib} MiB)"
                out.print(f"  {card.gpu.label}, {card.gpu.name}: {memory}, {cap}")
                for difference in card.differs:
                    out.print(Text(f"    {difference}", "dim"))
