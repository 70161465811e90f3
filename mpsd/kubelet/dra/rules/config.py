"""The parameters of a claim, a template or a class: MPSConfig.

They may only raise the cap of the threads above what is reserved, and lower the priority.
"""

from dataclasses import dataclass

from mpsd.kubelet.dra.rules.slices import CLIENTS, MEMORY, THREADS
from mpsd.model.client_limits import NORMAL, PRIORITIES, priority_problem
from mpsd.model.fields import FieldReader, Fields, at
from mpsd.model.policy import Policy
from mpsd.model.problem import Problem, shown

CONFIG_API = "mpsd.io/v1alpha1"
CONFIG_KIND = "MPSConfig"
THREAD_CAP = "threadCap"
PRIORITY = "priority"
_CONFIG_FIELDS = frozenset({"apiVersion", "kind", THREAD_CAP, PRIORITY})


@dataclass(frozen=True, slots=True)
class ClaimConfig:
    """cap: of the threads, None where none is named. priority: NORMAL too where none is named."""

    cap: int | None = None
    priority: int = NORMAL


def config_problems(parameters: object, where: str, policy: Policy) -> list[Problem]:
    """Everything that is wrong with the parameters of a claim, a template or a class."""
    return _read(parameters, where, policy)[1]


def _read(parameters: object, where: str, policy: Policy) -> tuple[ClaimConfig, list[Problem]]:
    """What the parameters say, and every problem."""
    if not isinstance(parameters, dict):
        remedy = f"write apiVersion: {CONFIG_API}, kind: {CONFIG_KIND} and its fields below it"
        problem = Problem("wrong-type", where, shown(parameters), "is not a mapping", remedy)
        return ClaimConfig(), [problem]
    if (parameters.get("apiVersion"), parameters.get("kind")) != (CONFIG_API, CONFIG_KIND):
        sent = f"{shown(parameters.get('kind'))} of {shown(parameters.get('apiVersion'))}"
        message = "is of another kind or version than mpsd reads"
        remedy = f"write kind: {CONFIG_KIND} and apiVersion: {CONFIG_API}"
        return ClaimConfig(), [Problem("config-version", where, sent, message, remedy)]
    problems: list[Problem] = []
    for key in sorted(parameters.keys() - _CONFIG_FIELDS, key=str):
        remedy = f"write {THREAD_CAP} or {PRIORITY}"
        if key in (MEMORY, THREADS, CLIENTS):
            remedy = "write it under capacity.requests of the request"
        sent = shown(parameters[key])
        place = at(where, str(key))
        problems.append(Problem("field-unknown", place, sent, "is no field of it", remedy))
    fields = FieldReader()
    cap = fields.number(parameters, THREAD_CAP, where, absent=None)
    problems += fields.problems
    least = policy.requests.minimum_thread_percent
    if cap is not None and not least <= cap <= 100:
        place = at(where, THREAD_CAP)
        remedy = f"write {least} to 100"
        problems.append(
            Problem("percent-range", place, str(cap), "is no thread percentage", remedy)
        )
    if (priority := parameters.get(PRIORITY)) is not None:
        problems += priority_problem(priority, at(where, PRIORITY))
    return ClaimConfig(cap, PRIORITIES.get(str(priority), NORMAL)), problems


def claim_config(
    fields: FieldReader, devices: Fields, path: str, driver: str, policy: Policy
) -> ClaimConfig:
    """What the parameters for this driver say. The cap that a claim names goes before that of its
    class; the priority is below normal where either says so."""
    caps: dict[str, int] = {}
    priority = NORMAL
    for where, entry in fields.entries(devices, "config", path):
        opaque = fields.mapping(entry, "opaque", where)
        if opaque.get("driver") == driver:
            config, problems = _read(
                opaque.get("parameters"), at(where, "opaque", "parameters"), policy
            )
            fields.problems += problems
            priority = max(priority, config.priority)
            if config.cap is not None:
                caps[fields.text(entry, "source", where)] = config.cap
    return ClaimConfig(caps.get("FromClaim", next(iter(caps.values()), None)), priority)
