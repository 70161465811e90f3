"""Touches and decides nothing: one outside thing a file."""
