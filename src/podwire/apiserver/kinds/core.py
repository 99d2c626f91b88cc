"""core/v1."""

from podwire.apiserver.kind import STATUS, Kind
from podwire.apiserver.naming import dns_label

NAMESPACES = Kind(
    group="",
    version="v1",
    kind="Namespace",
    plural="namespaces",
    namespaced=False,
    short_names=("ns",),
    subresources={"status": STATUS},
    check_name=dns_label,
)
PODS = Kind(
    group="",
    version="v1",
    kind="Pod",
    plural="pods",
    short_names=("po",),
    categories=("all",),
    subresources={"status": STATUS},
    generation=True,
)
CONFIG_MAPS = Kind(group="", version="v1", kind="ConfigMap", plural="configmaps", short_names=("cm",))
KINDS = (NAMESPACES, PODS, CONFIG_MAPS)
