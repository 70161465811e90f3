"""The webhook as a whole: real TLS, real HTTP, and a small API server that keeps what it is
told."""
