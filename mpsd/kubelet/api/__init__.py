"""kubelet's gRPC messages, generated from the .proto files here by `make proto`."""
