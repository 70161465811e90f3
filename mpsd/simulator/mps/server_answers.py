"""What the server's lists look like, and what it logs about a fault."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mpsd.simulator.gpus import SimulatedGpu
from mpsd.simulator.mps.device_table import device_table
from mpsd.simulator.mps.server_clients import Client


def process_table(clients: Sequence[Client], server: int, gpus: Sequence[SimulatedGpu]) -> str:
    """`ps`: a header and a row for each client; nothing at all without clients."""
    if not clients:
        return ""
    rows = [("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")]
    for client in clients:
        device = "-".join(gpus[client.device].uuid.split("-")[:4])
        namespace, command = _namespace_and_command(client.pid)
        rows.append((str(client.pid), str(client.number), str(server), device, namespace, command))
    return "".join(f"{row[0]:<10}{row[1]:<10}{row[2]:<15}{row[3]:<26}{row[4]:<15}{row[5]:<15}\n" for row in rows)


def _namespace_and_command(pid: int) -> tuple[str, str]:
    """Inode of the process's pid namespace and the first word of its command line; empty once it is dead."""
    process = Path(f"/proc/{pid}")
    try:
        command, _, _ = (process / "cmdline").read_bytes().partition(b"\0")
        return str((process / "ns" / "pid").stat().st_ino), command.decode(errors="replace")
    except OSError:
        return "", ""


def device_client_list(clients: Sequence[Client], gpus: Sequence[SimulatedGpu]) -> str:
    """`get_device_client_list`: each device with clients; the real one shows every PCI address as 00:00.0."""
    text = ""
    for ordinal, gpu in enumerate(gpus):
        rows = [f"{client.pid}.{client.contexts}\n" for client in clients if client.device == ordinal]
        if rows:
            text += f"[{ordinal}] 00:00.0, {gpu.name}\n" + "".join(rows)
    return text


def devices(gpus: Sequence[SimulatedGpu], server: int, words: Sequence[str]) -> str:
    """`device_query` while a server runs: the daemon's devices and the server's."""
    table = device_table(gpus, csv="--csv" in words)
    return f"Default\n{table}\nServer {server}\n{table}"


def fault_lines(named: Client, hit: Sequence[Client], ordinal: int) -> Iterator[str]:
    """The log of a fault on device `ordinal` that hit these clients."""
    yield f"Client {{PID: {named.pid}, Context: {named.contexts}}} encountered a fatal GPU error."
    yield "Server is handling a fatal GPU error."
    for client in hit:
        yield f"Client {client.shown} on device {ordinal} to be torn down"
    for client in hit:
        yield f"All clients belonging to error triggering process {client.pid} will be torn down"
        yield f"Client {client.shown} on the error-trigging process {client.pid} to be torn down"
    yield "The following devices will be reset:"
    yield str(ordinal)
    yield "The following client process have a sticky error set:"
    for client in hit:
        yield str(client.pid)
