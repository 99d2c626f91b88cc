"""SPDY/3.1 from the server's side, as far as Kubernetes' clients use it.

Source: SPDY Protocol - Draft 3.1 (The Chromium Projects).
"""
