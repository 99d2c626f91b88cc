"""The ``podwire`` command: what a person types, and what they read."""
