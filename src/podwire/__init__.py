"""Podwire: the pod network of a Kubernetes node and cluster, from a Pod manifest to a packet on eth0."""

__version__ = "0.1.0"
