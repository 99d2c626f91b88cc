"""Kubernetes API machinery: the objects that Podwire works with, and how they are read."""
