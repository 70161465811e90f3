"""seeds.md C5: ALIYUN_COM_GPU_OOM_SCRIPT is called before mpsd ends a process, as the container's
own user."""

import signal
from pathlib import Path

from tests.host.container import Container
from tests.host.host import Host
from tests.whole.machine.machine import eventually

TWO_OF_15 = {
    "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
    "ALIYUN_COM_GPU_MEM_DEV": "15",
    "NVIDIA_VISIBLE_DEVICES": "0",
}
USER = 4242
# Its own program holds a context; the second lifts its limit and takes too much.
GREEDY = (
    "sim-cuda hold & CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=garbage sim-cuda alloc=4000 hold; echo ended"
    " $?; sleep 600"
)
_SAYS = """#!/bin/sh
{
    id -u; cat /proc/self/cgroup; readlink /proc/self/ns/mnt; readlink /proc/self/ns/pid
    grep -E '^(Cap|NoNewPrivs)' /proc/self/status; env
} >/tmp/said.new
mv /tmp/said.new /tmp/said
"""


def made(host: Host, script: str, path: str = "/oom.sh") -> Container:
    """A container of another user than root, in which a program takes too much."""
    container = host.container(TWO_OF_15 | {"ALIYUN_COM_GPU_OOM_SCRIPT": path}, "sh", "-c", GREEDY)
    config = container.bundle.config
    config["process"] |= {"user": {"uid": USER, "gid": USER}, "noNewPrivileges": True}
    container.bundle.rewrite(config)
    (container.bundle.rootfs / "tmp").chmod(0o777)
    there = container.bundle.rootfs / "oom.sh"
    there.write_text(script)
    there.chmod(0o755)
    for done in (container.create(), container.start()):
        assert done.code == 0, done
    return container


def said_of(container: Container) -> str:
    path = container.bundle.rootfs / "tmp" / "said"
    eventually(path.exists, "the script has said what it is")
    return path.read_text()


def ended(container: Container) -> bool:
    return f"ended {128 + signal.SIGKILL}" in container.output or "ended 4" in container.output


def of_first(container: Container, name: str) -> str:
    """A link of its first process in /proc."""
    return str(Path(f"/proc/{container.pid}/{name}").readlink())


def test_c5_the_script_is_a_process_of_the_container_and_never_more(host: Host) -> None:
    container = made(host, _SAYS)
    said = said_of(container)
    lines = said.splitlines()
    assert lines[0] == str(USER)
    assert Path(f"/proc/{container.pid}/cgroup").read_text() in said
    assert {of_first(container, "ns/mnt"), of_first(container, "ns/pid")} <= set(lines)
    status = Path(f"/proc/{container.pid}/status").read_text().splitlines()
    own = {line for line in status if line.startswith(("CapBnd", "CapPrm", "NoNewPrivs"))}
    assert own <= set(lines), (own, lines)
    granted = host.granted_to(container).memory_mib
    assert f"MPSD_OOM_GRANTED_MIB={granted}" in lines
    used = next(line for line in lines if line.startswith("MPSD_OOM_USED_MIB="))
    assert int(used.partition("=")[2]) > granted  # by how much is a matter of the scan that saw it
    eventually(lambda: ended(container), "the process is ended")


def test_c5_a_script_that_never_ends_or_is_not_there_holds_nothing_up(host: Host) -> None:
    for container in (made(host, "#!/bin/sh\nexec sleep 600\n"), made(host, "", path="/none.sh")):
        eventually(lambda container=container: ended(container), "the process is ended")  # type: ignore[misc]
        assert container.status == "running"
        container.remove()
