"""Ports for readers: real HTTP and TLS, and the simulated API server behind them."""
