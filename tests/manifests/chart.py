"""Makes those parts of the Helm chart that say what other files say: its objects out of those that kustomize reads.

    python -m tests.manifests.chart

An object of the chart is the file of manifests/base or of a component with values in the place of some words, by the
table of `chart_edits`. Each of these words must be there, and a test compares what Helm renders with what kustomize
does. The values' `policy` is limits/policy.yaml, and its schema that of mpsd's own reader.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from mpsd.model.policy import Policy
from mpsd.platform.limits_files import shipped_folder
from tests.docs.policy_tables import schema_of
from tests.manifests.chart_edits import EVERYWHERE, MANIFESTS, RESOURCES, TEMPLATES, Made, conditional, indented
from tests.manifests.hostile_policy import hostile_policy

CHART = MANIFESTS / "chart"
_BY = "by `python -m tests.manifests.chart`; change it there."
_CLUSTER_WIDE = {
    *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"),
    *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "DeviceClass"),
}
_COMPONENTS = MANIFESTS / "components"
# What templates read as it is.
_COPIES = {
    "files/gpus.yaml": shipped_folder() / "gpus.yaml",
    "files/board.json": _COMPONENTS / "prometheus/board.json",
    "files/kube-scheduler-v1.yaml": _COMPONENTS / "scheduler/kube-scheduler.yaml",
    "files/kube-scheduler-v1beta2.yaml": _COMPONENTS / "scheduler-v1beta2/kube-scheduler.yaml",
    "files/kube-scheduler-v1beta1.yaml": _COMPONENTS / "scheduler-v1beta1/kube-scheduler.yaml",
}


def made() -> Iterator[tuple[str, str]]:
    """Each file of the chart that is made, in whole or in part: its path there, and its text."""
    for name, one in TEMPLATES.items():
        yield f"templates/{name}", template(one)
    for name, source in _COPIES.items():
        yield name, source.read_text()
    yield "templates/_policy.tpl", _policy_helpers()
    yield "values.yaml", _values()
    yield "values.schema.json", _schema()


def template(one: Made) -> str:
    text = (MANIFESTS / one.source).read_text().replace("{{", '{{ "{{" }}')
    for old, new in EVERYWHERE:
        text = text.replace(old, new)
    text = re.sub(r"( {8}- name: (\S+)\n(?: {10}.*\n)*? {10}resources:)\n(?: {12}.*\n)+", _resources, text)
    for old, new in one.edits:
        if old not in text:
            raise ValueError(f"manifests/{one.source} does not have:\n{old}")
        text = text.replace(old, new)
    body = "---\n".join(_document(document, one) for document in text.split("---\n"))
    head = f"{{{{- /* Made of manifests/{one.source} {_BY} */ -}}}}\n"
    return head + (conditional(one.when, body) if one.when else body)


def _resources(found: re.Match[str]) -> str:
    return f"{found[1]} {{{{- toYaml .Values.{RESOURCES[found[2]]} | nindent 12 }}}}\n"


def _document(text: str, one: Made) -> str:
    """With the namespace that kustomize would add, and on its own condition."""
    kind, name = (re.search(rf"^{word} *(\S+)$", text, re.MULTILINE) for word in ("kind:", "  name:"))
    if not kind or not name:
        raise ValueError(f"manifests/{one.source} has a document without kind or name")
    if kind[1] not in _CLUSTER_WIDE and not re.search("^  namespace: ", text, re.MULTILINE):
        text = text.replace(f"{name[0]}\n", f"{name[0]}\n  namespace: {{{{ .Release.Namespace }}}}\n", 1)
    condition = one.documents.get(f"{kind[1]} {name[1]}")
    return conditional(condition, text) if condition else text


def _leaves(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(found, dict) and found:
        for name, value in found.items():
            yield from _leaves(value, (*path, name))
    else:
        yield path, found


def _policy_helpers() -> str:
    """What Helm cannot know of the policy: which of its fields are null, and what hostile tenants change."""
    text = (shipped_folder() / "policy.yaml").read_text()
    shipped, hostile = (dict(_leaves(yaml.safe_load(one))) for one in (text, hostile_policy()))
    nulls = [path for path, value in shipped.items() if value is None]
    changed = [path for path, value in shipped.items() if hostile[path] != value]
    changes = [{"field": path, "shipped": shipped[path], "hostile": hostile[path]} for path in changed]
    table = ",\n ".join(map(json.dumps, changes))
    return f"""\
{{{{- /* Made of limits/policy.yaml {_BY} Helm drops what is null. */ -}}}}
{{{{- define "mpsd.nullFields" }}}}{json.dumps(nulls)}{{{{ end -}}}}
{{{{- define "mpsd.hostileChanges" -}}}}
[{table}]
{{{{- end -}}}}
"""


def _values() -> str:
    head, _policy = (CHART / "values.yaml").read_text().split("\npolicy:", 1)
    return f"{head}\npolicy:\n{indented((shipped_folder() / 'policy.yaml').read_text(), 2)}"


def _schema() -> str:
    """The schema of the values with that of the policy in its place, as mpsd itself reads it."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    policy = _plain(schema_of(Policy))
    del policy["$defs"]["Compute"]["properties"]["cards"]["propertyNames"]  # Helm would name no path: _checks.tpl does
    schema["$defs"] = policy.pop("$defs")
    schema["properties"]["policy"] = policy
    return json.dumps(schema, indent=2) + "\n"


def _plain(schema: Any) -> Any:
    """Without titles and docstrings, which are for who reads the code, and without demanding what may be null."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _plain(one) for name, one in schema.items() if name not in _NOTES or not isinstance(one, str)}
    if "required" in kept:
        properties = kept["properties"]
        kept["required"] = [name for name in kept["required"] if _NULL not in properties[name].get("anyOf", ())]
    return kept


_NOTES = {"title", "description"}
_NULL = {"type": "null"}


def write() -> None:
    for name, text in made():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(text)


if __name__ == "__main__":
    write()
