"""The table that `device_query` prints."""

from collections.abc import Sequence

from mpsd.simulator.gpus import SimulatedGpu

_COLUMNS = ("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")


def device_table(gpus: Sequence[SimulatedGpu], *, csv: bool) -> str:
    """A header and a row for each GPU, columns aligned or separated by commas."""
    rows = [_COLUMNS, *((str(n), _pci_ids(gpu), gpu.uuid, gpu.name, "N/A") for n, gpu in enumerate(gpus))]
    return "".join((",".join(row) if csv else _aligned(row)) + "\n" for row in rows)


def _aligned(row: Sequence[str]) -> str:
    ordinal, pci, uuid, name, attributes = row
    return f"{ordinal:<16}{pci:<15}{uuid:<42}{name:<34}{attributes}"


def _pci_ids(gpu: SimulatedGpu) -> str:
    """`0000:00.06.00` for a GPU that NVML shows as `00000000:00:06.0`: domain, then bus, device and function in hex."""
    domain, bus, device = gpu.pci_id.split(":")
    device, function = device.split(".")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}.{int(device, 16):02x}.{int(function, 16):02x}"
