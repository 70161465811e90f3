"""What users of mpsd hold in their hands, as the code and the manifests of today have it.

`python -m tests.surface.made` writes it to tests/data/surface.json. A name says what a thing is and stays the same as
long as it does; its value is what else users rely on, such as a flag's default or a metric's labels.
"""

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from mpsd.admission.rules.verdict import RULES
from mpsd.cli import inspect_cgpu, kubectl_mps, main
from mpsd.containers.runtime import main as runtime
from mpsd.containers.runtime.json_text import ContainerRefused
from mpsd.model.conditions import CONDITION, REASONS_OF_DOMAINS, Condition
from mpsd.model.domain import State
from mpsd.model.events import Reason
from mpsd.model.metrics import METRICS
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.node_checks import NODE_CHECKS
from mpsd.platform.console import ExitCode
from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.limits_files import shipped_folder
from tests.docs.policy_tables import CAPABILITIES, CARDS, POLICY
from tests.manifests.rendering import ALL, Object, called, rendered
from tests.surface.text import calls, strings

Section = dict[str, str]

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "data" / "surface.json"
_VARIABLE = re.compile(r"MPSD_[A-Z_]+[A-Z]")
_NAME = re.compile(r"(?:[\w-]+\.)+(?:io|com|accelerator)/[\w.{}=-]+|ack\.[\w.=-]+")
_API_VERSION = re.compile(r".*\.k8s\.io/v\d\w*")
_ROUTE = re.compile(r"(?:GET|POST|PUT|PATCH|DELETE) /\S*")
_DIALECT = re.compile(r"(?:ALIYUN|AMP|CUDA|GPU|NVIDIA)(?:_[A-Z]+)+|EGPU")


def surface() -> dict[str, Section]:
    """Everything, by section and name."""
    _render_all()
    commands = _commands()
    made = {
        "alerts": _alerts(),
        "commands": commands,
        "conditions": _conditions(),
        "crd": _crd(),
        "doctor checks": {str(check.id): check.severity.name for check in (*NODE_CHECKS, *CLUSTER_CHECKS)},
        "domain states": {str(state): "" for state in State},
        "entry points": dict.fromkeys(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"], ""),
        "event reasons": {str(reason): "Warning" if reason.is_warning else "Normal" for reason in Reason},
        "exit codes": _exit_codes(),
        "gpus.yaml": {field.strip("`"): kind for table in (CAPABILITIES, CARDS) for field, kind, *_ in table.rows()},
        "http": _matching(_ROUTE),
        "labels, annotations and resources": _names(),
        "manifests": _manifests(),
        "metrics": {one.name: f"{one.type} of {', '.join(one.exporters)}: {', '.join(one.labels)}" for one in METRICS},
        "policy.yaml": _policy(),
        "rules of admission": _rules(),
        "settings": _settings(commands),
        "variables of containers": _matching(_DIALECT),
    }
    return {section: dict(sorted(rows.items())) for section, rows in made.items()}


def _matching(pattern: re.Pattern[str]) -> Section:
    return {text: "" for text in strings() if pattern.fullmatch(text)}


def _settings(commands: Section) -> Section:
    """The variables that are written out, and those of options, which are named after their flags."""
    of_options = (variable for told in commands.values() for variable in _VARIABLE.findall(told))
    return _matching(_VARIABLE) | dict.fromkeys(of_options, "")


# -- command lines -------------------------------------------------------------------------------------------------


def _commands() -> Section:
    found: Section = {}
    for program, app in (
        ("mpsd", main.app),
        ("kubectl mps", kubectl_mps.app),
        ("kubectl inspect cgpu", inspect_cgpu.app),
    ):
        group: Any = typer.main.get_command(app)
        found |= _parameters(program, group)
        for verb in getattr(group, "verbs", ()):
            found |= {f"{program} {verb}": ""} | _parameters(f"{program} {verb}", group.load(verb))
    return found | _runtime_flags()


def _parameters(command: str, parsed: Any) -> Section:
    """Of a command: each option by its longest name, each argument by its own."""
    return {f"{command} {_called(one)}": _told_of(one) for one in parsed.params}


def _called(parameter: Any) -> str:
    return str(max(parameter.opts, key=len)) if parameter.param_type_name == "option" else parameter.name.upper()


def _told_of(parameter: Any) -> str:
    """Other names, what it takes, its default, and the variables that its help names with what they default to."""
    kind = parameter.type_descriptor.annotation
    is_choice = isinstance(kind, type) and hasattr(kind, "__members__")
    takes = "|".join(str(one) for one in kind) if is_choice else getattr(kind, "__name__", str(kind))
    names = sorted({*parameter.opts, *parameter.secondary_opts} - {_called(parameter), parameter.name})
    default = None if callable(parameter.default) else parameter.default
    shown = ["" if default is None else f"default {default}", "required" if parameter.required else ""]
    shown += ["repeated" if parameter.multiple else ""] if parameter.param_type_name == "option" else []
    shown += ["hidden"] if getattr(parameter, "hidden", False) else []
    of_help = re.search(r"\((MPSD_[^)]*)\)", getattr(parameter, "help", None) or "")
    return "; ".join(filter(None, [*names, takes, *shown, of_help[1] if of_help else ""]))


def _runtime_flags() -> Section:
    """Of mpsd-runtime, which reads its own command line: those of its help, and what the installation may choose."""
    text = runtime._HELP
    flags = {f"mpsd-runtime {flag}": "" for flag in re.findall(r"^ +(--[\w-]+)", text, re.MULTILINE)}
    chosen = inspect.signature(runtime.main).parameters.values()
    defaults = {f"mpsd-runtime as installed: {one.name}": repr(one.default) for one in chosen if one.name != "argv"}
    return flags | defaults


def _exit_codes() -> Section:
    codes = {code.name.lower(): str(code.value) for code in ExitCode}
    codes |= {"interrupted": str(INTERRUPTED), "mpsd-runtime refuses": str(ContainerRefused("").exit_code)}
    with pytest.raises(ContainerRefused) as refused:
        runtime.find_next("/nowhere")
    codes["mpsd-runtime does not find the next"] = str(refused.value.exit_code)
    given = (one.value for call in calls(ContainerRefused.__name__) for one in call.keywords if one.arg == "exit_code")
    return codes | {f"mpsd-runtime: {one.value}": "" for one in given if isinstance(one, ast.Constant)}


# -- what the cluster sees -----------------------------------------------------------------------------------------


def _alerts() -> Section:
    """As PrometheusRule has them."""
    (made,) = (thing for thing in rendered("overlays/prometheus") if thing["kind"] == "PrometheusRule")
    rules = [rule for group in made["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    return {rule["alert"]: f"{rule['labels']['severity']}, for {rule.get('for', '0s')}" for rule in rules}


def _conditions() -> Section:
    """The type of the node's condition, and its reasons."""
    given = [call.args[1] for call in calls(Condition.__name__) if len(call.args) > 1]
    reasons = {reason.value for reason in given if isinstance(reason, ast.Constant)} | REASONS_OF_DOMAINS
    return {CONDITION: "type"} | {str(reason): "reason" for reason in reasons}


def _crd() -> Section:
    """Every field of every version, every printed column, and how the kind is called."""
    found: Section = {}
    for thing in rendered("base"):
        if thing["kind"] != "CustomResourceDefinition":
            continue
        names = thing["spec"]["names"]
        found[names["kind"]] = f"{thing['spec']['group']}, {thing['spec']['scope']}, {json.dumps(names)}"
        for version in thing["spec"]["versions"]:
            start = f"{names['kind']}/{version['name']} "
            found |= {f"{start}{path}": kind for path, kind in _fields(version["schema"]["openAPIV3Schema"], "")}
            for column in version["additionalPrinterColumns"]:
                shown = f"{column['type']} {column['jsonPath']}, priority {column.get('priority', 0)}"
                found[f"{start}column {column['name']}"] = shown
    return found


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    limits = {name: value for name, value in schema.items() if name in {"enum", "format", "default", "required"}}
    yield path or ".", " ".join([schema.get("type", "any"), *([json.dumps(limits, sort_keys=True)] if limits else [])])
    for name, below in schema.get("properties", {}).items():
        yield from _fields(below, f"{path}.{name}")
    for name, mark in (("items", "[]"), ("additionalProperties", "[*]")):
        if isinstance(schema.get(name), Mapping):
            yield from _fields(schema[name], path + mark)


def _names() -> Section:
    """Of our own and of others' that we read: in the code, and in the metadata of the manifests."""
    written = {thing for place in ALL for thing in _keys([*rendered(place)])}
    names = {name for name in strings() | written if _NAME.fullmatch(name) and not _API_VERSION.fullmatch(name)}
    return dict.fromkeys(names, "")


def _keys(thing: object) -> Iterator[str]:
    if isinstance(thing, Mapping):
        for name, value in thing.items():
            yield name
            yield from _keys(value)
    elif isinstance(thing, list):
        for one in thing:
            yield from _keys(one)


def _manifests() -> Section:
    """The objects of the base, and what each overlay has beside them or leaves out."""
    base = {_object(thing) for thing in rendered("base")}
    found = {f"base: {name}": "" for name in base}
    for place in ALL:
        here = {_object(thing) for thing in rendered(place)}
        found |= {f"{place}: {name}": "" for name in here - base}
        found |= {f"{place}: {name}": "left out" for name in base - here}
    return found


def _object(thing: Object) -> str:
    """Without the mark that kustomize makes of a generated ConfigMap's content."""
    space = thing["metadata"].get("namespace", "")
    name = re.sub(r"-[bcdfghkmt2456789]{10}$", "", called(thing))
    return f"{name} in {space}" if space else name


# -- what the policy says ------------------------------------------------------------------------------------------


def _policy() -> Section:
    """Every field of policy.yaml with what it may be and what is shipped; the modes of rules stand with the rules."""
    shipped = yaml.safe_load((shipped_folder() / "policy.yaml").read_text())
    found: Section = {}
    for field, kind, *_rest in POLICY.rows():
        value = shipped
        for name in field.strip("`").split("."):
            value = value[name]
        is_modes = field == "`admission.rules`"
        found[field.strip("`")] = "mode by rule" if is_modes else f"{kind}; shipped {json.dumps(value, sort_keys=True)}"
    return found


def _rules() -> Section:
    modes = yaml.safe_load((shipped_folder() / "policy.yaml").read_text())["admission"]["rules"]
    return {str(rule.id): f"{modes[rule.id]}; pods: {rule.scope.name}" for rule in RULES}


def _render_all() -> None:
    """Renders every kustomization at once, which is most of what all this takes."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(rendered, ALL))


if __name__ == "__main__":
    KEPT.write_text(json.dumps(surface(), indent=1, ensure_ascii=False) + "\n")
