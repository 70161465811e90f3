"""A program that takes memory of a GPU through Vulkan, as one that draws does, and keeps it:
`vulkan_client.py MIB`.

It prints one JSON object a line: {"ready": PID, "alloc_MiB": MIB}, or {"error": FUNCTION, "rc":
VkResult}. The numbers are of the Vulkan specification (VkStructureType, VkMemoryPropertyFlagBits).
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PIECE_MIB = 512
_DEVICE_LOCAL = 0x1
# VK_STRUCTURE_TYPE_…_CREATE_INFO, …_MEMORY_ALLOCATE_INFO
_INSTANCE, _QUEUE, _DEVICE, _ALLOCATION = 1, 2, 3, 5
_HEAD = [("type", ctypes.c_uint32), ("next", ctypes.c_void_p)]
_NAMES = [
    *(("layers", ctypes.c_uint32), ("layer", ctypes.c_void_p)),
    *(("extensions", ctypes.c_uint32), ("extension", ctypes.c_void_p)),
]


class _InstanceInfo(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("flags", ctypes.c_uint32),
        ("application", ctypes.c_void_p),
        *_NAMES,
    ]


class _QueueInfo(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        *((name, ctypes.c_uint32) for name in ("flags", "family", "count")),
        ("of", ctypes.c_void_p),
    ]


class _DeviceInfo(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        *(("flags", ctypes.c_uint32), ("queues", ctypes.c_uint32), ("queue", ctypes.c_void_p)),
        *_NAMES,
        ("features", ctypes.c_void_p),
    ]


class _Allocation(ctypes.Structure):
    _fields_ = [*_HEAD, ("size", ctypes.c_uint64), ("memory_type", ctypes.c_uint32)]


class _Memory(ctypes.Structure):
    _fields_ = [
        *(("types", ctypes.c_uint32), ("type", ctypes.c_uint32 * 64)),
        *(("heaps", ctypes.c_uint32), ("heap", ctypes.c_uint64 * 32)),
    ]


def say(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    vulkan = ctypes.CDLL("libvulkan.so.1")

    def call(function: str, *arguments: Any) -> None:
        result = getattr(vulkan, function)(*arguments)
        if result:
            say(error=function, rc=result)
            sys.exit(1)

    instance, device, count, devices = (
        ctypes.c_void_p(),
        ctypes.c_void_p(),
        ctypes.c_uint32(1),
        (ctypes.c_void_p * 1)(),
    )
    call(
        "vkCreateInstance",
        ctypes.byref(_InstanceInfo(type=_INSTANCE)),
        None,
        ctypes.byref(instance),
    )
    # VK_INCOMPLETE where there are more
    vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
    gpu = ctypes.c_void_p(devices[0])
    priority = ctypes.c_float(1)
    queue = _QueueInfo(type=_QUEUE, count=1, of=ctypes.addressof(priority))
    info = _DeviceInfo(type=_DEVICE, queues=1, queue=ctypes.addressof(queue))
    call("vkCreateDevice", gpu, ctypes.byref(info), None, ctypes.byref(device))
    memory = _Memory()
    vulkan.vkGetPhysicalDeviceMemoryProperties(gpu, ctypes.byref(memory))
    local = next(
        number for number in range(memory.types) if memory.type[2 * number] & _DEVICE_LOCAL
    )
    taken_mib, wanted_mib = 0, int(sys.argv[1])
    while taken_mib < wanted_mib:
        piece = _Allocation(type=_ALLOCATION, size=_PIECE_MIB << 20, memory_type=local)
        call("vkAllocateMemory", device, ctypes.byref(piece), None, ctypes.byref(ctypes.c_void_p()))
        taken_mib += _PIECE_MIB
    say(ready=os.getpid(), alloc_MiB=taken_mib)
    signal.pause()


if __name__ == "__main__":
    main()
