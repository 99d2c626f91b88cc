"""The node's network daemon: a CNI server on a unix socket that runs our plugins in process."""
