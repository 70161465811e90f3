"""PyTorch, JAX and CuPy as tenants: what each sees of its share, and does at its end."""

import json
from collections.abc import Callable, Mapping

import pytest

from tests.e2e.cluster import Object
from tests.e2e.shares import Pods, share
from tests.e2e.waiting import eventually
from tests.e2e_gpu import frameworks
from tests.e2e_gpu.installation import CONTEXT_MIB, GpuInstallation

_GIB, _PIECE_MIB, _LIBRARIES_MIB = 8, 256, 1200
_WITHIN_S = 150.0

pytestmark = pytest.mark.skipif(
    not frameworks.PYTHON, reason="MPSD_E2E_FRAMEWORKS names no Python with PyTorch, JAX and CuPy"
)

_TORCH = """
import torch
free, total = torch.cuda.mem_get_info()
say(version=torch.__version__, free_MiB=free >> 20, total_MiB=total >> 20,
    sms=torch.cuda.get_device_properties(0).multi_processor_count)
held = []
def take():
    held.append(torch.zeros(256 << 18, dtype=torch.int32, device="cuda"))
refused_with(take, torch.cuda.OutOfMemoryError)
say(held_MiB=256 * len(held), reserved_MiB=torch.cuda.memory_reserved() >> 20)
held.clear()
torch.cuda.empty_cache()
a = torch.ones(1024, 1024, device="cuda")
say(works=float((a @ a)[0, 0]) == 1024.0)
"""
_JAX = """
import jax, jax.numpy as jnp
device = jax.devices()[0]
def stats():
    found = device.memory_stats() or {}
    return {name: amount >> 20 for name, amount in found.items() if "bytes" in name}
say(version=jax.__version__, platform=device.platform, at_start_MiB=stats())
held = []
def take():
    held.append(jax.device_put(jnp.zeros(256 << 18, dtype=jnp.int32), device).block_until_ready())
refused_with(take, Exception)
say(held_MiB=256 * len(held), at_limit_MiB=stats())
held.clear()
a = jnp.ones((1024, 1024), dtype=jnp.float32)
say(works=float((a @ a)[0, 0]) == 1024.0)
"""
_CUPY = """
import cupy
free, total = cupy.cuda.runtime.memGetInfo()
say(version=cupy.__version__, free_MiB=free >> 20, total_MiB=total >> 20,
    sms=cupy.cuda.runtime.getDeviceProperties(0)["multiProcessorCount"])
held = []
refused_with(lambda: held.append(cupy.cuda.alloc(256 << 20)), cupy.cuda.memory.OutOfMemoryError)
say(held_MiB=256 * len(held))
held.clear()
cupy.get_default_memory_pool().free_all_blocks()
try:
    a = cupy.ones((1024, 1024), dtype=cupy.float32)
    say(works=float((a @ a)[0, 0]) == 1024.0)
except Exception as error:  # it compiles kernels, for which it needs CUDA's headers
    say(works=False, error=repr(error)[:300])
"""
_BEGIN = """
import json
def say(**line):
    print(json.dumps(line), flush=True)
def refused_with(take, kind):
    for _ in range(1000):
        try:
            take()
        except kind as error:
            kind = f"{type(error).__module__}.{type(error).__name__}"
            say(refused_with=kind, message=str(error)[:200])
            return
"""
# JAX 0.11.2 aborts when it frees memory, once it was refused some before it had the three quarters
# that it wants.
_MAY_ABORT = {"jax"}
_PROGRAMS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "torch": (_TORCH, {}),
    "jax": (_JAX, {}),
    "jax-fits": (_JAX, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "FITS"}),
    "jax-grows": (_JAX, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    "cupy": (_CUPY, {"CUPY_CACHE_DIR": "/tmp/cupy"}),
}


def _pod(pods: Pods, name: str, card_mib: int) -> Object:
    program, environment = _PROGRAMS[name]
    fits = f"{(_GIB * 1024 - CONTEXT_MIB - _LIBRARIES_MIB) / card_mib:.3f}"
    asks = pods.asks(_GIB)
    asks["env"] = [
        {"name": key, "value": value.replace("FITS", fits)}
        for key, value in ({"HOME": "/tmp"} | environment).items()
    ]
    spec = frameworks.runs_python(asks, _BEGIN + program)
    return share(name, asks, **spec)


@pytest.fixture(scope="module", autouse=True)
def all_at_once(mpsd: GpuInstallation, pods: Pods) -> None:
    """Beside each other: it takes long to load them."""
    card_mib = mpsd.gpus()[0]["memoryMiB"]
    pods.create(*(_pod(pods, name, card_mib) for name in _PROGRAMS))


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_framework_ends_at_its_limit_with_an_error_of_its_own_and_goes_on(
    pods: Pods, name: str, record_property: Callable[[str, object], None]
) -> None:
    phase = eventually(
        lambda: pods.phase(name) in {"Succeeded", "Failed"} and pods.phase(name),
        f"{name} done",
        within_s=_WITHIN_S,
    )
    said = pods.said(name)
    record_property("said", said)
    print("\n" + "\n".join(json.dumps(line) for line in said))
    logs = pods.cluster.kubectl("logs", name, "-n", pods.namespace, "--tail=40")
    assert phase == "Succeeded" or name in _MAY_ABORT, f"{pods.why(name)}\n{logs.out}{logs.err}"
    assert not [event for event in pods.events(name) if event["reason"].startswith("GPU")], (
        "nobody of it was judged"
    )
    (held,) = [line["held_MiB"] for line in said if "held_MiB" in line]
    assert any("refused_with" in line for line in said)
    assert _GIB * 1024 * 0.7 - CONTEXT_MIB - _LIBRARIES_MIB < held < _GIB * 1024
    for line in said:
        if "free_MiB" in line:
            assert _GIB * 1024 - CONTEXT_MIB - _PIECE_MIB < line["free_MiB"] < _GIB * 1024
