"""Time as the node sees it; see :mod:`podwire.kube.clock`."""

from podwire.kube.clock import SECOND, Clock, SystemClock, VirtualClock, timestamp

__all__ = ["SECOND", "Clock", "SystemClock", "VirtualClock", "timestamp"]
