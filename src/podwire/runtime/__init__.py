"""Sandboxes and containers: the interface that the node uses, and the runtimes behind it."""
