"""Each rule of admission, in every kind of container and of object."""

from dataclasses import replace

import pytest

from mpsd.model.policy import HostIPC, Policy, RuleId
from tests.admission.cases import KINDS, PLACED, asking, broken, found, in_kind, with_volume
from tests.model.manifests import (
    COUNT,
    MEMORY,
    POLICY,
    STEPS,
    Fields,
    container,
    inside,
    pod,
    with_admission,
)

SIDECAR = {"restartPolicy": "Always"}


# Fields of a container, the rules they break on a pod that asks for a GPU and on one that does not,
# place and value.
FIELDS: list[tuple[Fields, str, str, str, str]] = [
    (
        {"securityContext": {"privileged": True}},
        "privileged",
        "unasked-privileged",
        "securityContext.privileged",
        "true",
    ),
    (
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
        "environment-blocked",
        "unasked-visible-devices",
        "env[NVIDIA_VISIBLE_DEVICES]",
        '"all"',
    ),
    (
        {
            "env": [
                {
                    "name": "NVIDIA_VISIBLE_DEVICES",
                    "value": "void",
                    "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}},
                }
            ]
        },
        "environment-blocked",
        "unasked-visible-devices",
        "env[NVIDIA_VISIBLE_DEVICES]",
        "taken from elsewhere",
    ),
    (
        {"volumeMounts": [{"name": "data", "mountPath": "/run/mpsd/client"}]},
        "mount-path",
        "mount-path",
        "volumeMounts[0].mountPath",
        '"/run/mpsd/client"',
    ),
    (
        {"volumeDevices": [{"name": "data", "devicePath": "//dev/./nvidia0/"}]},
        "mount-path",
        "mount-path",
        "volumeDevices[0].devicePath",
        '"//dev/./nvidia0/"',
    ),
    (
        {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
        "capabilities",
        "",
        "securityContext",
        "",
    ),
]


@pytest.mark.parametrize("kind", [*KINDS, "sidecars"])
@pytest.mark.parametrize(("fields", "rule", "unasked", "where", "value"), FIELDS)
def test_a_container_of_any_kind_is_held_to_the_rules(
    kind: str, fields: Fields, rule: str, unasked: str, where: str, value: str
) -> None:
    if kind == "sidecars":
        kind, fields = "initContainers", {**fields, **SIDECAR}
    ((broken_rule, place, seen),) = broken(in_kind(kind, **fields))
    assert broken_rule == rule
    assert place.startswith(f"spec.{kind}[x].{where}")
    assert seen == value or not value
    assert [one[0] for one in broken(in_kind(kind, asks=False, **fields))] == (
        [unasked] if unasked else []
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fields",
    [
        {
            "securityContext": {
                "privileged": False,
                "capabilities": {"add": ["NET_ADMIN", "IPC_LOCK"], "drop": ["ALL"]},
            }
        },
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]},
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]},
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": ""}]},
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]},
        {"env": [{"name": "nvidia_visible_devices", "value": "all"}]},
        {
            "volumeMounts": [
                {"name": "data", "mountPath": "/run"},
                {"name": "shm", "mountPath": "/dev/shm"},
            ]
        },
        {"volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}]},
        {"resources": {"limits": {"cpu": 2, "nvidia.com/hostdev": 1, "nvidia.com/gpu": 0}}},
    ],
)
def test_what_takes_nothing_is_left_alone(kind: str, fields: Fields) -> None:
    assert broken(in_kind(kind, **fields)) == []
    assert broken(in_kind(kind, asks=False, **fields)) == []


# One object that breaks each rule, for what must hold of all of them.
BREAKERS: dict[RuleId, tuple[Fields, Policy]] = {
    RuleId.OBJECT_MALFORMED: (pod(container(), hostIPC="true"), POLICY),
    RuleId.REQUEST_IMPOSSIBLE: (pod(container(limits={MEMORY: "40Gb"})), POLICY),
    RuleId.OTHER_GPU_TOO: (pod(container(limits={MEMORY: 7, "nvidia.com/gpu": 1})), POLICY),
    RuleId.GPUS_NOT_TOGETHER: (
        pod(container(limits={MEMORY: 9}), labels={COUNT: "3"}),
        replace(POLICY, domains=[[0, 1]]),
    ),
    RuleId.HOST_IPC_MISSING: (asking(hostIPC=None), POLICY),
    RuleId.HOST_IPC_ADDED: (asking(hostIPC=None), with_admission(host_ipc=HostIPC.INJECT)),
    RuleId.HOST_IPC_UNNEEDED: (asking(), with_admission(host_ipc=HostIPC.OFF)),
    RuleId.ENVIRONMENT_BLOCKED: (
        pod(container(limits={MEMORY: 7}, env=[{"name": "EGPU", "value": "1"}])),
        POLICY,
    ),
    RuleId.ENVIRONMENT_SECRET: (
        pod(container(limits={MEMORY: 7}, envFrom=[{"secretRef": {"name": "keys"}}])),
        POLICY,
    ),
    RuleId.ENVIRONMENT_UNSEEN: (
        pod(container(limits={MEMORY: 7}, envFrom=[{"configMapRef": {"name": "train"}}])),
        POLICY,
    ),
    RuleId.PRIVILEGED: (in_kind("containers", securityContext={"privileged": True}), POLICY),
    RuleId.CAPABILITIES: (
        in_kind("containers", securityContext={"capabilities": {"add": ["ALL"]}}),
        POLICY,
    ),
    RuleId.HOST_PID: (asking(hostPID=True), POLICY),
    RuleId.HOST_ROOT: (asking(securityContext=None), POLICY),
    RuleId.HOST_PATH: (with_volume("/dev"), POLICY),
    RuleId.SCHEDULER_NAME: (asking(schedulerName="other"), POLICY),
    RuleId.NODE_NAME: (asking(nodeName="node-1"), POLICY),
    RuleId.RUNTIME_CLASS: (asking(runtimeClassName="kata"), POLICY),
    RuleId.PLACEMENT_ANNOTATION: (
        asking() | {"metadata": {"name": "train", "annotations": PLACED}},
        POLICY,
    ),
    RuleId.GRACE_ZERO: (asking(terminationGracePeriodSeconds=0), POLICY),
    RuleId.MOUNT_PATH: (in_kind("containers", volumeMounts=[{"mountPath": "/run/mpsd"}]), POLICY),
    RuleId.MPSD_FILES: (with_volume("/run/mpsd"), POLICY),
    RuleId.UNASKED_VISIBLE_DEVICES: (
        in_kind("containers", asks=False, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        POLICY,
    ),
    RuleId.UNASKED_PRIVILEGED: (
        in_kind("containers", asks=False, securityContext={"privileged": True}),
        POLICY,
    ),
    RuleId.UNASKED_HOST_PATH: (with_volume("/", asks=False), POLICY),
}


@pytest.mark.parametrize("rule", list(RuleId))
@pytest.mark.parametrize(("version", "kind"), STEPS)
def test_each_rule_is_found_in_every_kind_of_object_alone_and_at_its_place(
    version: str, kind: str, rule: RuleId
) -> None:
    template, policy = BREAKERS[rule]
    thing = inside(version, kind, template)
    ones = found(thing, policy)
    assert {one.rule for one in ones} == {rule}
    prefix = ".".join(STEPS[version, kind])
    assert all(one.problem.where.startswith(prefix) for one in ones)
    assert all(one.problem.message and one.problem.remedy for one in ones)


def test_what_a_rule_finds_carries_the_rules_name_but_for_amounts_and_shapes() -> None:
    finer = {RuleId.OBJECT_MALFORMED, RuleId.REQUEST_IMPOSSIBLE}
    for rule, (thing, policy) in BREAKERS.items():
        for one in found(thing, policy):
            assert (one.problem.rule == rule) is (rule not in finer)
