"""The sentences for containers without Kubernetes, as people read them: `wording.txt` has them all."""

from collections.abc import Iterator

from mpsd.containers.dialects.parsing import read_dialect
from mpsd.containers.dialects.request import InvalidDialect
from mpsd.containers.engines.configuration import CONFIGURATIONS, LAUNCHER, Engine
from mpsd.containers.rules.admission import container_findings
from mpsd.containers.rules.grant_change import changed
from mpsd.grants.rules.messages import GrantChangeRequest, HostContainerRequest
from mpsd.model.problem import InvalidInput
from tests.containers.dialect_machine import NATIVE, machine
from tests.containers.test_change_report import IN_CONTAINER, using
from tests.model.gpu_worlds import policy
from tests.model.worlds import POLICY

_GIB = "ALIYUN_COM_GPU_MEM_CONTAINER"
_ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {_GIB: "many"},
    {_GIB: "1,2,3", "NVIDIA_VISIBLE_DEVICES": "all"},
    {_GIB: "2"},
    {_GIB: "2", "NVIDIA_VISIBLE_DEVICES": "none"},
    {_GIB: "2", "NVIDIA_VISIBLE_DEVICES": "0,0,7"},
    {_GIB: "2", "EGPU": "x"},
    {"AMP_VGPU_ENABLE": "1", _GIB: "2", "GPU_MEM_PER_DEVICE": "5", "NVIDIA_VISIBLE_DEVICES": "0"},
    {"AMP_VGPU_ENABLE": "1", "ALIYUN_COM_GPU_MEM_DEV": "16", "NVIDIA_VISIBLE_DEVICES": "0"},
    {"EGPU": "POLICY=1,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=110"},
    {"EGPU": "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=7,MEM=x"},
    {"EGPU": "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10", "NVIDIA_VISIBLE_DEVICES": "1"},
)
_CHANGES = (
    GrantChangeRequest(),
    GrantChangeRequest(percent=101, weight=0),
    GrantChangeRequest(memory_mib=10**6),
    GrantChangeRequest(memory_mib=2000),
    GrantChangeRequest(weight=3),
    GrantChangeRequest(memory_mib=3000, gpu="GPU-none"),
)
_FILES = {
    Engine.DOCKER: ("[]", '{"a": 1, "a": 2}', '{"runtimes": 1}', '{"runtimes": {"mpsd": {"path": "/opt/x"}}}'),
    Engine.CONTAINERD: ("version = 4", "version = 2\nplugins = 3"),
    Engine.PODMAN: ("[engine]\nx = 1\n", "[engine.runtimes]\nmpsd = ['/opt/x']\n"),
}


def _environments() -> Iterator[str]:
    for environment in _ENVIRONMENTS:
        reading = read_dialect(environment, machine(16384, 2), NATIVE)
        assert isinstance(reading, InvalidDialect), environment
        yield from map(str, reading.problems)


def _containers() -> Iterator[str]:
    asks = HostContainerRequest("run/runc", "../x", "", {}, "oom.sh", ("SYS_ADMIN",), False, True)
    found = container_findings(asks, policy(), "575.57.08")
    yield from (*map(str, found.problems), *found.messages)


def _changes() -> Iterator[str]:
    for change in _CHANGES:
        found = changed(IN_CONTAINER, change, using(IN_CONTAINER, 3000), POLICY)
        assert isinstance(found, tuple), change
        yield from map(str, found)
    found = changed(IN_CONTAINER, GrantChangeRequest(memory_mib=2000), using(IN_CONTAINER, None), POLICY)
    assert isinstance(found, tuple)
    yield from map(str, found)


def _engines() -> Iterator[str]:
    for engine, texts in _FILES.items():
        configuration = CONFIGURATIONS[engine](engine, LAUNCHER)
        for text in texts:
            try:
                configuration.with_runtime(text)
            except InvalidInput as error:
                yield str(error)
        yield from configuration.notes("version = 1\nimports = ['/x']\n")
        yield from (configuration.cost_of_removal(launcher_stays=stays) for stays in (True, False))


def wording() -> str:
    parts = {"variables": _environments, "bundles": _containers, "mpsd set": _changes, "engines": _engines}
    return "".join(f"{name}\n" + "".join(f"  {line}\n" for line in lines()) for name, lines in parts.items())
