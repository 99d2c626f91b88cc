"""Whether a CNI plugin, anybody's, does what the specification says: run as a runtime runs it, and watched.

Knows no plugin's code: it calls executables, each check on an empty host of its own (`isolation`), and looks
with the kernel room at what they did.
"""
