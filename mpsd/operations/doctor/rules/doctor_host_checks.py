"""The checks of `mpsd doctor` of what is around mpsd: container engines, kubelet, SELinux, other runtimes.

One rule: what mpsd has no part in on this machine is no fault, so an engine counts only where it names mpsd's launcher.
"""

from collections.abc import Iterator

from mpsd.containers.engines.change import LAUNCHER, Engine, has_runtime
from mpsd.model.problem import InvalidInput
from mpsd.operations.doctor.rules.doctor import Check, Severity, Wrong
from mpsd.operations.doctor.rules.doctor_facts import Elsewhere, NodeFacts, NotKnown, Unknown, known

# What container.te of container-selinux lets containers manage: container_file_t, and svirt_sandbox_file_t in
# its version 1.0.0; container_ro_file_t may only be read. NVIDIA's device plugin, too, labels its MPS folders
# container_file_t:s0 (NVIDIA/k8s-device-plugin#1105). What has categories is for one container (container_selinux(8)).
_CONTAINERS_MAY_USE = {"container_file_t", "svirt_sandbox_file_t"}


def _engines(facts: NodeFacts) -> tuple[Engine, ...]:
    """Those whose configuration names the launcher. NotKnown where there is none, or it cannot be known."""
    naming, unread = [], ""
    for seen in known(facts.engines):
        text = seen.text
        if isinstance(text, Unknown | Elsewhere):
            unread = f"{seen.file} cannot be read: {text.why}"
            continue
        try:
            if text is not None and has_runtime(seen.engine, text, seen.file, LAUNCHER):
                naming.append(seen.engine)
        except InvalidInput as error:
            unread = str(error)
    if naming:
        return tuple(naming)
    raise NotKnown(Unknown(unread) if unread else Elsewhere("no container engine here names mpsd"))


def _launcher(facts: NodeFacts) -> Iterator[Wrong]:
    engines = _engines(facts)
    names, again = " and ".join(engines), f"`mpsd install {engines[0]}` writes it anew"
    launcher = known(facts.launcher)
    if not launcher.is_there:
        yield Wrong(f"{launcher.path} is not there, and {names} would start containers with it", again)
        return
    for missing in known(launcher.missing):
        yield Wrong(f"{launcher.path}, with which {names} starts containers, needs {missing}, which is gone", again)
    if not launcher.next_found:
        tried = " or ".join(launcher.next_runtimes)
        yield Wrong(f"{launcher.path} finds no {tried} to hand containers to", "install one, or name one: --next PATH")


def _toolkit(facts: NodeFacts) -> Iterator[Wrong]:
    engines = _engines(facts)
    if not known(facts.toolkit):
        what = f"nvidia-container-runtime is not installed, and containers of {' and '.join(engines)} get no GPU"
        yield Wrong(what, "install the package nvidia-container-toolkit")


def _kubelet(facts: NodeFacts) -> Iterator[Wrong]:
    kubelet = known(facts.kubelet)
    if not kubelet.device_plugins:
        what = f"{kubelet.directory}/device-plugins is not there: kubelet takes no device plugin, so pods get no share"
        yield Wrong(what, "give `mpsd agent` the root that kubelet has: --kubelet-dir (MPSD_KUBELET_DIR)")


def _selinux(facts: NodeFacts) -> Iterator[Wrong]:
    selinux = known(facts.selinux)
    for folder, kind in selinux.types if selinux.enforcing else ():
        if kind not in _CONTAINERS_MAY_USE:
            what = f"SELinux is enforcing, and {folder} has the type {kind or '(none)'}, which confined containers"
            yield Wrong(f"{what} may not use", f"chcon -R -t container_file_t -l s0 {folder}")


def _default_pipe(facts: NodeFacts) -> Iterator[Wrong]:
    if known(facts.default_pipe):
        what = "/tmp/nvidia-mps is there: some runtimes mount it into every GPU container, past mpsd"  # noqa: S108
        yield Wrong(what, "see that no daemon serves in it, then remove it")


_ENGINES = "daemon.json of docker, config.toml of containerd, podman's mpsd.conf"
HOST_CHECKS = (
    Check(
        "launcher-broken",
        Severity.STOPS,
        "mpsd-runtime can start",
        ("engines", "launcher"),
        f"{_ENGINES}, and {LAUNCHER}",
        _launcher,
    ),
    Check(
        "no-toolkit",
        Severity.STOPS,
        "containers can have GPUs",
        ("engines", "toolkit"),
        f"{_ENGINES}, and the folders of programs",
        _toolkit,
    ),
    Check("kubelet-folder", Severity.STOPS, "kubelet takes device plugins", ("kubelet",), "kubelet's root", _kubelet),
    Check("selinux", Severity.BREAKS, "SELinux lets containers in", ("selinux",), "/sys/fs/selinux, labels", _selinux),
    Check("default-pipe", Severity.NOTE, "there is no /tmp/nvidia-mps", ("default_pipe",), "its folder", _default_pipe),
)
