"""mpsd: NVIDIA MPS for Kubernetes and single machines, with limits that hold."""

__version__ = "0.1.0"
