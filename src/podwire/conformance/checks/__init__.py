"""The checks, one module a part of the specification; `podwire.conformance.catalogue` is their table."""
