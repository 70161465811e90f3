"""What the cluster is told of a node, by an agent that never waits for the API server."""
