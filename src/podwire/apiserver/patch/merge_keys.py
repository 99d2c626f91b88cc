"""The shapes of the built-in kinds.

Source: the tags ``patchStrategy``, ``patchMergeKey``, ``+listType``, ``+listMapKey``, ``+mapType`` and
``+structType`` in k8s.io/api (core/v1, discovery/v1, networking/v1, coordination/v1), and apimachinery's
meta/v1. What is not named here is merged by field (mappings) or replaced (lists).
"""

from __future__ import annotations

from podwire.apiserver.patch.shape import ENTRIES, PLAIN, SET, WHOLE, Shape, keyed, record

METADATA = record(
    labels=ENTRIES,
    annotations=ENTRIES,
    finalizers=SET,
    ownerReferences=keyed("uid", WHOLE),
)

_CONDITIONS = keyed("type")
_QUANTITIES = ENTRIES
_RESOURCES = record(limits=_QUANTITIES, requests=_QUANTITIES, claims=keyed("name", merged=False))
_KEY_REFERENCE = record(
    configMapKeyRef=WHOLE, secretKeyRef=WHOLE, fieldRef=WHOLE, resourceFieldRef=WHOLE, fileKeyRef=WHOLE
)
_CONTAINER = record(
    ports=keyed("containerPort", keys=("containerPort", "protocol"), defaults={"protocol": "TCP"}),
    env=keyed("name", record(valueFrom=_KEY_REFERENCE)),
    volumeMounts=keyed("mountPath"),
    volumeDevices=keyed("devicePath"),
    resources=_RESOURCES,
)
_CONTAINERS = keyed("name", _CONTAINER)
_VOLUME = record(
    cephfs=record(secretRef=WHOLE),
    csi=record(nodePublishSecretRef=WHOLE, volumeAttributes=ENTRIES),
    ephemeral=record(
        volumeClaimTemplate=record(
            metadata=METADATA,
            spec=record(selector=WHOLE, dataSource=WHOLE, resources=_RESOURCES),
        )
    ),
    flexVolume=record(secretRef=WHOLE, options=ENTRIES),
    iscsi=record(secretRef=WHOLE),
    rbd=record(secretRef=WHOLE),
)
_POD_SPEC = record(
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    ephemeralContainers=_CONTAINERS,
    volumes=keyed("name", _VOLUME),
    imagePullSecrets=keyed("name", WHOLE),
    hostAliases=keyed("ip"),
    topologySpreadConstraints=keyed(
        "topologyKey", record(labelSelector=WHOLE), keys=("topologyKey", "whenUnsatisfiable")
    ),
    resourceClaims=keyed("name"),
    schedulingGates=keyed("name"),
    nodeSelector=Shape(entries=True, atomic=True),
    overhead=_QUANTITIES,
    resources=_RESOURCES,
    affinity=record(
        nodeAffinity=record(requiredDuringSchedulingIgnoredDuringExecution=WHOLE),
    ),
)
_POD_STATUS = record(
    conditions=_CONDITIONS,
    podIPs=keyed("ip"),
    hostIPs=Shape(items=PLAIN, merged=True, merge_key="ip"),
    resourceClaimStatuses=keyed("name"),
)
_INGRESS_BACKEND = record(resource=WHOLE)

SHAPES: dict[tuple[str, str], Shape] = {
    ("", "Pod"): record(metadata=METADATA, spec=_POD_SPEC, status=_POD_STATUS),
    ("", "Node"): record(
        metadata=METADATA,
        spec=record(podCIDRs=SET),
        status=record(
            conditions=_CONDITIONS, addresses=keyed("type"), capacity=_QUANTITIES, allocatable=_QUANTITIES
        ),
    ),
    ("", "Namespace"): record(metadata=METADATA, status=record(conditions=_CONDITIONS)),
    ("", "Service"): record(
        metadata=METADATA,
        spec=record(
            ports=keyed("port", keys=("port", "protocol"), defaults={"protocol": "TCP"}),
            selector=Shape(entries=True, atomic=True),
        ),
        status=record(conditions=_CONDITIONS),
    ),
    ("", "ServiceAccount"): record(metadata=METADATA, secrets=keyed("name", WHOLE)),
    ("", "ConfigMap"): record(metadata=METADATA, data=ENTRIES, binaryData=ENTRIES),
    ("", "Secret"): record(metadata=METADATA, data=ENTRIES, stringData=ENTRIES),
    ("", "Event"): record(metadata=METADATA, involvedObject=WHOLE, related=WHOLE),
    ("events.k8s.io", "Event"): record(metadata=METADATA, regarding=WHOLE, related=WHOLE),
    ("networking.k8s.io", "NetworkPolicy"): record(
        metadata=METADATA, spec=record(podSelector=WHOLE), status=record(conditions=_CONDITIONS)
    ),
    ("networking.k8s.io", "Ingress"): record(metadata=METADATA, spec=record(defaultBackend=_INGRESS_BACKEND)),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): record(
        metadata=METADATA,
        status=record(conditions=keyed("type", merged=False)),
    ),
}
_OTHER = record(metadata=METADATA)


def shape_of(group: str, kind: str) -> Shape:
    """The shape of a built-in kind."""
    return SHAPES.get((group, kind), _OTHER)
