"""The variables that the container dialects are written in, and what the launcher and mpsd-runtime both know.

Nothing is imported, because every container that is started waits for this to load.
"""

NVIDIA_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # which cards, in every dialect

# Shared by cGPU and eGPU.
CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
DEV = "ALIYUN_COM_GPU_MEM_DEV"

# cGPU's own.
WEIGHT = "ALIYUN_COM_GPU_SCHD_WEIGHT"

# eGPU's own.
SWITCH = "AMP_VGPU_ENABLE"
BYTES = "GPU_MEM_PER_DEVICE"
PERCENT = "GPU_UTIL_PER_DEVICE"
RESERVED = "ALIYUN_COM_GPU_MEM_RESERVED"
OOM_SCRIPT = "ALIYUN_COM_GPU_OOM_SCRIPT"  # requests no share: it is called before mpsd ends a process

# CTyun's EGPU.
EGPU = "EGPU"

REQUESTING = (CONTAINER, DEV, WEIGHT, SWITCH, BYTES, PERCENT, RESERVED, EGPU)  # without any, nothing is requested
VARIABLES = (*REQUESTING, NVIDIA_VISIBLE_DEVICES)  # everything that says what is requested

NEXT_RUNTIMES = ("nvidia-container-runtime", "runc")  # the first that is found, where no other is named
# Those that mpsd-runtime handles; the rest is the next runtime's.
COMMANDS = ("create", "run", "exec", "kill", "delete", "over")
