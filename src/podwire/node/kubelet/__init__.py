"""The kubelet's port: how an API server, or whoever else may, reaches the pods of this node."""
