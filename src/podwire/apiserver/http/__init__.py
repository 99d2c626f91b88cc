"""The HTTP side of the API server: paths, negotiation, streams, discovery."""
