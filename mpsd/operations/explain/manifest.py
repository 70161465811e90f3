"""`mpsd explain`: what the objects in a manifest get of a GPU, or why they are refused."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from mpsd.admission.rules.verdict import AdmissionVerdict, review_all
from mpsd.model.client_limits import environment
from mpsd.model.gpu_facts import Card
from mpsd.model.pod import Role
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem
from mpsd.model.quantity import gib
from mpsd.model.request import ContainerRequest, client_limit
from mpsd.operations.explain.environment import card_named, explain_environment
from mpsd.platform.console import ExitCode, Format, answers, counted, print_invalid, print_json, problem_line
from mpsd.platform.limits_files import Limits, load_limits
from mpsd.platform.options import OutputFormat
from mpsd.platform.yaml_files import name_of, read_yaml

CLIENT_DIRECTORY = "/run/mpsd/client"  # where a pod finds its domain's socket, whichever domain that is


def explain(
    files: Annotated[
        list[str] | None,
        typer.Option("-f", "--filename", metavar="FILE", help="A manifest; - is standard input.", show_default=False),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "-e",
            "--env",
            metavar="FILE|KEY=VALUE",
            help="A container's environment instead, as docker takes it: an --env-file, or variables one by one.",
            show_default=False,
        ),
    ] = None,
    output: OutputFormat = Format.TEXT,
    limits: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="MPSD_LIMITS",
            help="policy.yaml and gpus.yaml; else those shipped.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Assume this GPU, such as H200; with --env for several too, such as 4xA10.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Say of every object in a manifest what it gets of a GPU, or everything that keeps it from being admitted.

    Needs no GPU and no cluster. Exits with 1 when an object is refused, with 2 when a file cannot be read; what is in
    the others is said all the same.

        mpsd explain -f job.yaml
        mpsd explain -f job.yaml --gpu H200
        kubectl get pods -A -o yaml | mpsd explain -f - -o json
        mpsd explain -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15 --gpu T4
    """
    if bool(files) is bool(env):
        remedy = "leave one out" if env else "write one of them"
        problem = Problem("one-source", "-f or --env", "", "one of them is needed, and not both", remedy)
        raise InvalidInput("mpsd explain", [problem])
    in_force = load_limits(limits)
    if env:
        raise typer.Exit(explain_environment(env, gpu, in_force, as_json=output is Format.JSON))
    card = card_named(gpu, in_force.facts) if gpu else None
    context = _ManifestContext(
        in_force if card is None else replace(in_force, facts=replace(in_force.facts, cards=[card])), card
    )
    verdicts, unreadable = _verdicts(files or (), context.limits)
    if output is Format.JSON:
        unread = [AdmissionVerdict(wrong.subject, wrong.problems) for wrong in unreadable]
        print_json([_record(verdict, context) for verdict in [*verdicts, *unread]])
    else:
        for verdict in verdicts:
            _print(verdict, context)
    for wrong in unreadable:
        print_invalid(wrong)
    if unreadable:
        raise typer.Exit(ExitCode.MISUSE)
    raise typer.Exit(ExitCode.YES if all(verdict.admitted for verdict in verdicts) else ExitCode.NO)


@dataclass(frozen=True, slots=True)
class _ManifestContext:
    """What the objects are reviewed by. card: the one GPU they are to run on, None for any."""

    limits: Limits
    card: Card | None


def _verdicts(files: Sequence[str], limits: Limits) -> tuple[list[AdmissionVerdict], list[InvalidInput]]:
    """The verdicts on what is in all files, and what is wrong with the files that cannot be read."""
    verdicts: list[AdmissionVerdict] = []
    unreadable = []
    for file in files:
        try:
            documents = read_yaml(file)
            if not documents:
                empty = Problem("no-object", "the file", "", "holds no object", "write a Kubernetes object in it")
                raise InvalidInput(name_of(file), [empty])
        except InvalidInput as error:
            unreadable.append(error)
            continue
        for document in documents:
            verdicts.extend(review_all(document.value, limits.policy, limits.facts))
    return verdicts, unreadable


def _record(verdict: AdmissionVerdict, context: _ManifestContext) -> dict[str, object]:
    policy = context.limits.policy
    return {
        "object": verdict.object_name,
        "admitted": verdict.admitted,
        "remark": verdict.remark,
        "problems": [problem.record() for problem in verdict.problems],
        "warnings": [warning.record() for warning in verdict.warnings],
        "noted": [noted.record() for noted in verdict.noted],
        "requests": [_request_record(request) for request in verdict.requests],
        "limits": [_limit_record(request, context) for request in verdict.requests],
        "environment": {request.container: _environment(request, policy) for request in verdict.requests},
    }


def _request_record(request: ContainerRequest) -> dict[str, object]:
    return {
        "container": request.container,
        "role": request.role,
        "memory_units": request.memory_units,
        "memory_mib": request.memory_mib,
        "thread_percent": request.thread_percent,
        "gpus": request.gpus,
    }


def _limit_record(request: ContainerRequest, context: _ManifestContext) -> dict[str, object]:
    """What MPS is set to and, on one model of GPU, what that leaves for the program once its CUDA context is there."""
    limit = client_limit(request, context.limits.policy)
    record: dict[str, object] = {
        "container": request.container,
        "memory_mib": limit.memory_mib,
        "thread_percent": limit.thread_percent,
    }
    if card := context.card:
        capability = context.limits.facts.capability(card.compute_capability)
        assert capability is not None, "GpuFacts does not load without a row for every card"
        sms = capability.sms_given(limit.thread_percent, card.sms)
        cost_mib = capability.context_cost_mib(sms)
        record |= {"gpu": card.name, "sms": sms, "context_mib": cost_mib, "left_mib": limit.memory_mib - cost_mib}
    return record


def _environment(request: ContainerRequest, policy: Policy) -> dict[str, str]:
    return environment(client_limit(request, policy), CLIENT_DIRECTORY)


def _print(verdict: AdmissionVerdict, context: _ManifestContext) -> None:
    out = answers()
    state = Text("admitted", "green") if verdict.admitted else Text("refused", "bold red")
    tail = Text(f": {verdict.remark}" if verdict.remark else "")
    if verdict.problems:
        tail = Text.assemble(", ", counted(verdict.problems, "red"))
    out.print(Text.assemble((verdict.object_name, "bold"), " is ", state, tail))
    for problem in verdict.problems:
        out.print(Text.assemble("  ", problem_line(problem)))
    for request in verdict.requests:
        out.print(f"  {_words(request, context.limits.policy)}")
        if context.card:
            given = _limit_record(request, context)
            out.print(
                f"    on {context.card.name} that is {given['sms']} of {context.card.sms} SMs; "
                f"a context takes {given['context_mib']} MiB and leaves {given['left_mib']} MiB"
            )
        for name, value in _environment(request, context.limits.policy).items():
            out.print(Text(f"    {name}={value}", "dim"))
    for word, style, problems in (("warning", "yellow", verdict.warnings), ("note", "dim", verdict.noted)):
        for problem in problems:
            out.print(Text.assemble("  ", (f"{word} ", style), problem_line(problem)))


_ROLES = {Role.MAIN: "container", Role.INIT: "init container", Role.SIDECAR: "sidecar", Role.EPHEMERAL: "container"}


def _words(request: ContainerRequest, policy: Policy) -> str:
    """What a container gets, in a sentence."""
    gpus = "one GPU" if request.gpus == 1 else f"each of {request.gpus} GPUs"
    percent = client_limit(request, policy).thread_percent
    share = "all" if percent == 100 else f"{percent} %"
    held = "none of them reserved" if request.thread_percent is None else "reserved for it"
    return (
        f"{_ROLES[request.role]} {request.container} gets {gib(request.memory_mib)} GiB of {gpus}, "
        f"CUDA's own context included, and {share} of its threads, {held}"
    )
