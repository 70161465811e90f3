"""In what the kubelets differ that the simulated one can be.

One rule: a difference is in here only where kubelet's code was read, and `mpsd` could notice it.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Version:
    """One release of kubelet.

    dials_before_it_answers: Register fails where the plugin's socket does not answer; otherwise nobody tells.
    knows_plugins_by_socket: where one ends, it can tell which of those of the same resource it was.
    deletes_files: what is left in the device-plugins folder at its start goes, not only sockets.
    checks_held_devices: a pod that holds devices already is refused at a restart of kubelet when they are not healthy
    and its containers do not run. entry_a_device: PodResources gives each device an entry of its own.
    lists_ended_pods, lists_sidecars: PodResources names them, too.
    rejected: how the message of a pod begins that is refused.
    """

    name: str
    dials_before_it_answers: bool
    knows_plugins_by_socket: bool
    deletes_files: bool
    checks_held_devices: bool
    entry_a_device: bool
    lists_ended_pods: bool
    lists_sidecars: bool
    rejected: str


OLDEST = Version(
    "1.20",
    dials_before_it_answers=False,
    knows_plugins_by_socket=True,
    deletes_files=True,
    checks_held_devices=False,
    entry_a_device=False,
    lists_ended_pods=True,
    lists_sidecars=False,
    rejected="Pod ",
)
NEWEST = Version(
    "1.36",
    dials_before_it_answers=True,
    knows_plugins_by_socket=True,
    deletes_files=False,
    checks_held_devices=True,
    entry_a_device=True,
    lists_ended_pods=False,
    lists_sidecars=True,
    rejected="Pod was rejected: ",
)
CONFUSED = replace(NEWEST, name="1.30", knows_plugins_by_socket=False)
VERSIONS = {version.name: version for version in (OLDEST, CONFUSED, NEWEST)}


# How long the simulated kubelet waits for what.


@dataclass(frozen=True, slots=True)
class KubeletPace:
    """retry_s: before it tries the same again, at first; a real one waits 10 s.

    list_s, look_s: between two looks at which pods there are, and at how a container is.

    dial_s, forget_plugin_s: kubelet's own, for a plugin to answer when it registers, and until one that is gone is no
    longer counted among what the node has (endpointStopGracePeriod in the device manager's types.go).
    """

    retry_s: float = 1.0
    list_s: float = 0.2
    look_s: float = 0.02
    dial_s: float = 10.0
    forget_plugin_s: float = 300.0
