"""Every object that tests/admission puts before the rules, and how an API server answers when it is
created.

`pytest -p tests.e2e.admission.cases` notes them while tests/admission runs.
"""

import copy
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from queue import SimpleQueue
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from mpsd.admission.rules.configurations import PROBE
from mpsd.model.policy import RuleId
from mpsd.platform.rules import kubernetes_objects
from tests.e2e.cluster import Cluster, Object
from tests.e2e.load import proxied
from tests.model.manifests import STEPS

_TESTS = Path(__file__).parents[2] / "admission"
_LONGEST = 100_000  # characters: an API server takes half a minute over what is longer
_FILE = "MPSD_NOTED_CASES"
_AT_ONCE = 4
_ANSWER_S = 60.0
_PATHS = {
    f"{version} {kind}": (
        f"{'apis' if '/' in version else 'api'}/{version}/namespaces/{{}}/{kind.lower()}s"
    )
    for version, kind in STEPS
    if version != "batch/v1beta1"
}
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_SOURCES: Object = {
    "volumeMounts": {"emptyDir": {}},
    "volumeDevices": {"persistentVolumeClaim": {"claimName": "x"}},
}
_DENIED = re.compile(
    r"ValidatingAdmissionPolicy '[\w-]+' with binding '[\w-]+' denied request: ([\w-]+): "
)
_WARNED = re.compile(r"(?:^|ValidatingAdmissionPolicy '[\w-]+' with binding '[\w-]+': )([\w-]+): ")

_noted: dict[str, Object] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Nothing has imported the reader by its name yet."""
    if _FILE in os.environ:
        read = kubernetes_objects.read_object

        def noting(thing: Any, namespace: str = "") -> kubernetes_objects.KubernetesObject:
            found = read(thing, namespace)
            if (
                isinstance(thing, dict)
                and f"{thing.get('apiVersion')} {thing.get('kind')}" in _PATHS
            ):
                text = json.dumps(thing, sort_keys=True)
                if len(text) < _LONGEST and PROBE not in text:  # which is the webhook's own
                    _noted[text] = {"thing": thing, "is_sound": not found.problems}
            return found

        kubernetes_objects.read_object = noting


def pytest_unconfigure(config: pytest.Config) -> None:
    if _FILE in os.environ:
        Path(os.environ[_FILE]).write_text(json.dumps([*_noted.values()]))


@cache
def admission_cases() -> list[Object]:
    options = ("-q", "-p", "no:cacheprovider", "-p", __name__, "-m", "not hypothesis")
    command = [sys.executable, "-m", "pytest", *options, "-k", "not deep", str(_TESTS)]
    with NamedTemporaryFile() as noted:
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {_FILE: noted.name}
        )
        assert done.returncode == 0, done.stdout[-4000:]
        cases = json.loads(Path(noted.name).read_text())
    found = (_completed(one["thing"]) if one["is_sound"] else one["thing"] for one in cases)
    return [*{json.dumps(thing, sort_keys=True): thing for thing in found}.values()]


def _completed(thing: Object) -> Object:
    """With what an API server wants of an object and no rule looks at."""
    thing = copy.deepcopy(thing)
    thing["metadata"] = _metadata(thing)
    template: Any = thing
    for step in STEPS[thing["apiVersion"], thing["kind"]]:
        template = template.get(step) or {}
    if template is not thing:
        template["metadata"] = _metadata(template)
        _complete_workload(thing)
    spec = template.get("spec")
    if isinstance(spec, dict):
        _complete_pod(spec)
    return thing


def _metadata(thing: Object) -> Object:
    said = thing.get("metadata") or {}
    labels = {"app": "case"} | (said.get("labels") or {})
    return {"name": "case", "labels": labels, "annotations": said.get("annotations") or {}}


def _complete_workload(thing: Object) -> None:
    match thing["kind"], thing.get("spec"):
        case "CronJob", dict() as spec:
            spec["schedule"] = "0 0 1 1 *"
            _never_again(spec.get("jobTemplate", {}).get("spec"))
        case "Job", spec:
            _never_again(spec)
        case (("Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet"), dict() as spec):
            spec["selector"] = {"matchLabels": {"app": "case"}}


def _never_again(job: Any) -> None:
    if isinstance(job, dict) and isinstance(job.get("template", {}).get("spec"), dict):
        job["template"]["spec"]["restartPolicy"] = "Never"


def _complete_pod(spec: Object) -> None:
    """Nothing runs it, and nothing of a name of its own is mounted."""
    spec |= {"automountServiceAccountToken": False, "nodeSelector": {"mpsd.io/e2e": "nowhere"}}
    volumes = {one.get("name", ""): one for one in spec.get("volumes") or ()}
    for container in (one for kind in _CONTAINERS for one in spec.get(kind) or ()):
        container.setdefault("image", "train")
        for key, source in _SOURCES.items():
            for mount in container.get(key) or ():
                name = mount.setdefault("name", "data")
                volumes.setdefault(name, {"name": name, **source})
        security, resources = (
            container.get("securityContext") or {},
            container.get("resources") or {},
        )
        if security.get("privileged"):
            security.pop("allowPrivilegeEscalation", None)
        extended = {
            name: amount
            for name, amount in (resources.get("requests") or {}).items()
            if "/" in name
        }
        if extended:
            resources["limits"] = (resources.get("limits") or {}) | extended
    if volumes:
        spec["volumes"] = [*volumes.values()]


@dataclass(frozen=True, slots=True)
class Answer:
    """thing: as it would be made, or why it is refused. warnings: without their code and agent."""

    status: int
    thing: Object
    warnings: tuple[str, ...]

    @property
    def message(self) -> str:
        return str(self.thing.get("message", ""))

    @property
    def is_admitted(self) -> bool:
        return self.status < 300

    @property
    def rule_broken(self) -> str:
        """The rule of the ValidatingAdmissionPolicy that refuses it: an API server names the
        first."""
        found = _DENIED.search(self.message)
        return found[1] if found else ""

    @property
    def is_judged(self) -> bool:
        """Whether admission was asked about it."""
        return self.is_admitted or "denied" in self.message

    @property
    def rules_warned(self) -> set[str]:
        found = {match[1] for one in self.warnings if (match := _WARNED.search(one))}
        return found & set(map(str, RuleId))


@dataclass(frozen=True, slots=True)
class Creator:
    """Asks for objects to be created, or replaced, as dry runs. idle: connections that no thread
    asks over now."""

    idle: SimpleQueue[HTTPConnection]
    namespace: str

    def create(self, thing: Object, user: str = "", *, dry: bool = True) -> Answer:
        path = self._path(thing)
        return self.ask("POST", path, thing, user, dry=dry)

    def ask_for_all(self, cases: Sequence[Object]) -> list[Answer]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [*pool.map(self.ask_for, cases)]

    def ask_for(self, case: Object) -> Answer:
        """A pod gets its ephemeral containers once it is there."""
        debugging = case["kind"] == "Pod" and case["spec"].get("ephemeralContainers")
        if not debugging or len(debugging) > 1:
            return self.create(case)
        bare = copy.deepcopy(case)
        del bare["spec"]["ephemeralContainers"]
        name = hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()[:12]
        made = self.create(bare | {"metadata": bare["metadata"] | {"name": name}}, dry=False)
        if made.status == 409:
            made = self.ask("GET", f"{self._path(case)}/{name}", {})
        if not made.is_admitted:
            return made
        made.thing["spec"]["ephemeralContainers"] = debugging
        return self.replace(made.thing, "ephemeralcontainers")

    def replace(
        self, thing: Object, subresource: str = "", user: str = "", *, dry: bool = True
    ) -> Answer:
        """Whoever else has written to it meanwhile."""
        thing = thing | {"metadata": thing["metadata"] | {"resourceVersion": ""}}
        path = f"{self._path(thing)}/{thing['metadata']['name']}"
        return self.ask("PUT", f"{path}/{subresource}".rstrip("/"), thing, user, dry=dry)

    def _path(self, thing: Object) -> str:
        return _PATHS[f"{thing['apiVersion']} {thing['kind']}"].format(self.namespace)

    def ask(
        self, method: str, path: str, thing: Object, user: str = "", *, dry: bool = True
    ) -> Answer:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if user:
            headers |= {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        connection = self.idle.get(timeout=_ANSWER_S)
        try:
            connection.request(
                method, f"/{path}{'?dryRun=All' if dry else ''}", json.dumps(thing), headers
            )
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, ValueError, HTTPException):
            connection.close()
            raise
        finally:
            self.idle.put(connection)
        warnings = tuple(
            json.loads(found[0])
            for one in response.headers.get_all("Warning") or ()
            if (found := re.search(r'".*"', one))
        )
        return Answer(response.status, answer, warnings)


@contextmanager
def creating(cluster: Cluster, namespace: str) -> Iterator[Creator]:
    with proxied(cluster) as port:
        connections = [
            HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S) for _ in range(_AT_ONCE)
        ]
        idle = SimpleQueue[HTTPConnection]()
        for one in connections:
            idle.put(one)
        try:
            yield Creator(idle, namespace)
        finally:
            for one in connections:
                one.close()
