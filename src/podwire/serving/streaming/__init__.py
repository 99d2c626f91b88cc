"""The streaming subresources of pods: exec, attach, port-forward and logs, as kubectl speaks them."""
