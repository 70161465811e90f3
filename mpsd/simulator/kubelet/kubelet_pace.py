"""How long the simulated kubelet waits for what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
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
