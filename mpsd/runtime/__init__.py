"""The OCI runtime `mpsd-runtime`, in front of runc: every container waits for it, so it loads next to nothing."""
