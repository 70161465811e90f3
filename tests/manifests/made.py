"""Makes those files of manifests/ that say what others say: `python -m tests.manifests.made`.

Copies of limits/, the policy's schema by mpsd's own reader, and install.yaml, which is ACK's
published form. A test holds each to what would be made now.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mpsd.model.policy import Policy
from mpsd.platform.limits_files import shipped_folder
from tests.docs.policy_tables import schema_of
from tests.manifests.helm import CHART, MANIFESTS, text_by_helm, values

_OLDEST = "v1.30.0"  # for which install.yaml is
_HEAD = """\
# mpsd under the names of ACK's published form, for Kubernetes 1.30 and newer. Put the name of your
# image in the place of mpsd:{version}, and apply it: docs/install.md.
# Rendered from manifests/chart by `python -m tests.manifests.made`; change it there.
"""
_NOTES = {"title", "description"}


def made() -> Iterator[tuple[Path, str]]:
    """The last one is made from the others as they lie there."""
    for name in ("policy.yaml", "gpus.yaml"):
        yield CHART / "files" / name, (shipped_folder() / name).read_text()
    yield CHART / "values.schema.json", _schema()
    yield MANIFESTS / "install.yaml", _install()


def _install() -> str:
    given = yaml.safe_load((MANIFESTS / "values/ack.yaml").read_text())
    text = text_by_helm(values(createNamespace=True, **given), _OLDEST)
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    return _HEAD.format(version=version) + re.sub(r"[ \t]+\n", "\n", text)


def _schema() -> str:
    """The schema of the values with that of the policy in its place, as mpsd itself reads it."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    whole = schema_of(Policy)
    policy = _plain(whole)
    # of a card nothing is shipped
    required = whole["$defs"]["CardCompute"]["required"]
    policy["$defs"]["CardCompute"]["required"] = required
    # Helm would name no path: _checks.tpl does
    del policy["$defs"]["Compute"]["properties"]["cards"]["propertyNames"]
    schema["$defs"] = policy.pop("$defs")
    schema["properties"]["policy"] = policy
    # the end of a text is \Z in Python alone, whose $ is before a last line break too
    return json.dumps(schema, indent=2).replace(r'\\Z"', '$"') + "\n"


def _plain(schema: Any) -> Any:
    """Without titles, docstrings and required fields: what is absent is as shipped."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, one in schema.items():
        is_note = name in _NOTES and isinstance(one, str)
        is_required = name == "required" and isinstance(one, list)
        if not is_note and not is_required:
            kept[name] = _plain(one)
    return kept


def write() -> None:
    for path, text in made():
        path.write_text(text)


if __name__ == "__main__":
    write()
