"""The acts of the demo, in the order in which it tells them; `machine` is a story of its own."""
