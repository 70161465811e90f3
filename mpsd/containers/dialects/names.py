"""The container dialects' variables; every container start waits for this module."""

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
# requests no share: it is called before mpsd ends a process
OOM_SCRIPT = "ALIYUN_COM_GPU_OOM_SCRIPT"

# CTyun's EGPU.
EGPU = "EGPU"

# without any, nothing is requested
REQUESTING = (CONTAINER, DEV, WEIGHT, SWITCH, BYTES, PERCENT, RESERVED, EGPU)
VARIABLES = (*REQUESTING, NVIDIA_VISIBLE_DEVICES)  # everything that says what is requested

# the first that is found, where no other is named
NEXT_RUNTIMES = ("nvidia-container-runtime", "runc")
# Those that mpsd-runtime handles; the rest is the next runtime's.
COMMANDS = ("create", "run", "exec", "kill", "delete", "over")
