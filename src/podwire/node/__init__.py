"""The kubelet's part: a worker for each pod, its status, its events, and the node's own API."""
