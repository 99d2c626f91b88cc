"""A Kubernetes API server for one machine: objects in SQLite, the HTTP API, and the controllers it needs."""
