"""What is refused of objects, what is filled in, and fields that a kind does not have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api, Object, config_map, pod, with_meta

NAMES: list[Any] = [
    pytest.param("configmaps", "A", False, id="upper case"),
    pytest.param("configmaps", "a_b", False, id="underscore"),
    pytest.param("configmaps", "-a", False, id="dash first"),
    pytest.param("configmaps", "a.", False, id="dot last"),
    pytest.param("configmaps", "a..b", False, id="two dots"),
    pytest.param("configmaps", "a" * 254, False, id="too long"),
    pytest.param("configmaps", "a" * 253, True, id="long"),
    pytest.param("configmaps", "1.a-b.2", True, id="domain"),
    pytest.param("services", "1a", False, id="service: digit first"),
    pytest.param("services", "a.b", False, id="service: dot"),
    pytest.param("services", "a" * 64, False, id="service: too long"),
    pytest.param("services", "a-1", True, id="service"),
    pytest.param("pods", "a.b", True, id="pod: domain"),
]
BODIES: dict[str, Object] = {
    "configmaps": {"metadata": {}},
    "services": {"metadata": {}, "spec": {"ports": [{"port": 80}]}},
    "pods": pod("x"),
}


@pytest.mark.parametrize(("plural", "name", "good"), NAMES)
async def test_names(api: Api, plural: str, name: str, good: bool) -> None:
    answer = await api.create(api.at(plural), with_meta(BODIES[plural], name=name))
    if good:
        answer.ok(201)
    else:
        answer.fails(422, "Invalid", causes=(("FieldValueInvalid", "metadata.name"),))


async def test_namespace_names_are_labels(api: Api) -> None:
    for name in ("a.b", "A", "a" * 64, "-"):
        (await api.create("/api/v1/namespaces", {"metadata": {"name": name}})).fails(
            422, "Invalid", causes=(("FieldValueInvalid", "metadata.name"),)
        )


async def test_an_object_has_a_name(api: Api) -> None:
    body = (await api.create(api.at("configmaps"), {"data": {}})).fails(
        422, "Invalid", "name or generateName is required", causes=(("FieldValueRequired", "metadata.name"),)
    )
    assert body["message"].startswith('ConfigMap "" is invalid: metadata.name: Required value')
    assert body["details"]["kind"] == "ConfigMap"


META: list[Any] = [
    pytest.param({"labels": {"a b": "c"}}, "metadata.labels", id="label key"),
    pytest.param({"labels": {"a": "b c"}}, "metadata.labels", id="label value"),
    pytest.param({"labels": {"a" * 64: "b"}}, "metadata.labels", id="long key"),
    pytest.param({"labels": {"A/b": "c"}}, "metadata.labels", id="key prefix"),
    pytest.param({"annotations": {"a b": "c"}}, "metadata.annotations", id="annotation key"),
    pytest.param({"generateName": "A_"}, "metadata.generateName", id="prefix"),
]


@pytest.mark.parametrize(("meta", "field"), META)
async def test_metadata(api: Api, meta: Object, field: str) -> None:
    (await api.create(api.at("configmaps"), with_meta(config_map("a"), **meta))).fails(
        422, "Invalid", causes=(("FieldValueInvalid", field),)
    )


async def test_annotations_have_a_limit(api: Api) -> None:
    body = with_meta(config_map("a"), annotations={"a": "x" * (257 << 10)})
    (await api.create(api.at("configmaps"), body)).fails(
        422, "Invalid", causes=(("FieldValueTooLong", "metadata.annotations"),)
    )


POD_FAULTS: list[Any] = [
    pytest.param({"containers": []}, "FieldValueRequired", "spec.containers", id="no containers"),
    pytest.param(
        {"containers": [{"name": "a"}]}, "FieldValueRequired", "spec.containers[0].image", id="image"
    ),
    pytest.param(
        {"containers": [{"image": "x"}]}, "FieldValueRequired", "spec.containers[0].name", id="container name"
    ),
    pytest.param(
        {"containers": [{"name": "A", "image": "x"}]},
        "FieldValueInvalid",
        "spec.containers[0].name",
        id="case",
    ),
    pytest.param(
        {"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]},
        "FieldValueDuplicate",
        "spec.containers[1].name",
        id="same name",
    ),
    pytest.param({"restartPolicy": "Never!"}, "FieldValueNotSupported", "spec.restartPolicy", id="policy"),
    pytest.param({"dnsPolicy": "Mine"}, "FieldValueNotSupported", "spec.dnsPolicy", id="dns"),
    pytest.param(
        {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 0}]}]},
        "FieldValueRequired",
        "spec.containers[0].ports[0].containerPort",
        id="no port",
    ),
    pytest.param(
        {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 70000}]}]},
        "FieldValueInvalid",
        "spec.containers[0].ports[0].containerPort",
        id="port",
    ),
    pytest.param(
        {"containers": [{"name": "a", "image": "x", "imagePullPolicy": "Maybe"}]},
        "FieldValueNotSupported",
        "spec.containers[0].imagePullPolicy",
        id="pull policy",
    ),
    pytest.param(
        {"containers": [{"name": "a", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
        "FieldValueNotFound",
        "spec.containers[0].volumeMounts[0].name",
        id="no volume",
    ),
    pytest.param(
        {"containers": [{"name": "a", "image": "x", "env": [{"name": "", "value": "b"}]}]},
        "FieldValueRequired",
        "spec.containers[0].env[0].name",
        id="variable",
    ),
    pytest.param(
        {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]},
        "FieldValueDuplicate",
        "spec.volumes[1].name",
        id="same volume",
    ),
    pytest.param({"nodeName": "A b"}, "FieldValueInvalid", "spec.nodeName", id="node"),
    pytest.param(
        {"activeDeadlineSeconds": 0}, "FieldValueInvalid", "spec.activeDeadlineSeconds", id="deadline"
    ),
]


@pytest.mark.parametrize(("spec", "reason", "field"), POD_FAULTS)
async def test_pods(api: Api, spec: Object, reason: str, field: str) -> None:
    body = (await api.create(api.at("pods"), pod("a", **spec))).fails(
        422, "Invalid", field, causes=((reason, field),)
    )
    assert body["message"].startswith('Pod "a" is invalid: ')
    assert body["details"]["kind"] == "Pod"


SERVICE_FAULTS: list[Any] = [
    pytest.param({}, "FieldValueRequired", "spec.ports", id="no ports"),
    pytest.param({"ports": [{"port": 0}]}, "FieldValueInvalid", "spec.ports[0].port", id="port"),
    pytest.param(
        {"ports": [{"port": 80}, {"port": 81}]}, "FieldValueRequired", "spec.ports[0].name", id="no names"
    ),
    pytest.param(
        {"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]},
        "FieldValueDuplicate",
        "spec.ports[1]",
        id="same port",
    ),
    pytest.param(
        {"ports": [{"port": 80, "protocol": "ICMP"}]},
        "FieldValueNotSupported",
        "spec.ports[0].protocol",
        id="protocol",
    ),
    pytest.param({"ports": [{"port": 80}], "type": "Wide"}, "FieldValueNotSupported", "spec.type", id="type"),
    pytest.param(
        {"ports": [{"port": 80}], "clusterIP": "nothing"},
        "FieldValueInvalid",
        "spec.clusterIPs[0]",
        id="address",
    ),
    pytest.param({"type": "ExternalName"}, "FieldValueRequired", "spec.externalName", id="external name"),
]


@pytest.mark.parametrize(("spec", "reason", "field"), SERVICE_FAULTS)
async def test_services(api: Api, spec: Object, reason: str, field: str) -> None:
    body = {"metadata": {"name": "s"}, "spec": spec}
    (await api.create(api.at("services"), body)).fails(422, "Invalid", causes=((reason, field),))


DATA_FAULTS: list[Any] = [
    pytest.param("configmaps", {"data": {"a b": "c"}}, "FieldValueInvalid", "data[a b]", id="key"),
    pytest.param(
        "configmaps",
        {"data": {"a": "b"}, "binaryData": {"a": "Yg=="}},
        "FieldValueInvalid",
        "data[a]",
        id="key in both",
    ),
    pytest.param(
        "configmaps", {"data": {"a": "x" * (1 + (1 << 20))}}, "FieldValueTooLong", "", id="too long"
    ),
    pytest.param(
        "secrets", {"type": "kubernetes.io/tls", "data": {}}, "FieldValueRequired", "data[tls.crt]", id="tls"
    ),
    pytest.param("secrets", {"data": {"a/b": ""}}, "FieldValueInvalid", "data[a/b]", id="secret key"),
]


@pytest.mark.parametrize(("plural", "body", "reason", "field"), DATA_FAULTS)
async def test_data(api: Api, plural: str, body: Object, reason: str, field: str) -> None:
    answer = (await api.create(api.at(plural), {"metadata": {"name": "a"}, **body})).fails(422, "Invalid")
    causes = {(c["reason"], c.get("field", "")) for c in answer["details"]["causes"]}
    assert (reason, field) in causes, causes


async def test_a_secret_keeps_strings_as_data(api: Api) -> None:
    body = {"metadata": {"name": "s"}, "data": {"a": "YQ=="}, "stringData": {"b": "b", "a": "c"}}
    made = (await api.create(api.at("secrets"), body)).ok(201)
    assert made["data"] == {"a": "Yw==", "b": "Yg=="}
    assert "stringData" not in made
    assert made["type"] == "Opaque"
    (await api.create(api.at("secrets"), {"metadata": {"name": "t"}, "data": {"a": "!"}})).fails(
        400, "BadRequest", "illegal base64 data"
    )


async def test_defaults_of_a_pod(api: Api) -> None:
    made = (await api.create(api.at("pods"), pod("a"))).ok(201)
    spec = made["spec"]
    assert {name: spec[name] for name in ("restartPolicy", "dnsPolicy", "terminationGracePeriodSeconds")} == {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
    }
    assert spec["securityContext"] == {}
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert (spec["enableServiceLinks"], spec["preemptionPolicy"], spec["priority"]) == (
        True,
        "PreemptLowerPriority",
        0,
    )
    assert {t["key"]: t["tolerationSeconds"] for t in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready": 300,
        "node.kubernetes.io/unreachable": 300,
    }
    assert spec["containers"][0] == {
        "name": "main",
        "image": "registry.invalid/none:1",
        "imagePullPolicy": "IfNotPresent",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    assert made["status"]["phase"] == "Pending"
    assert made["status"]["qosClass"] == "BestEffort"


async def test_defaults_below_a_pod(api: Api) -> None:
    probe = {"httpGet": {"port": 80}}
    container = {
        "name": "main",
        "image": "registry.invalid/none",
        "ports": [{"containerPort": 80}],
        "readinessProbe": probe,
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    volumes = [{"name": "c", "configMap": {"name": "x"}}, {"name": "e"}]
    made = (await api.create(api.at("pods"), pod("a", containers=[container], volumes=volumes))).ok(201)
    found = made["spec"]["containers"][0]
    assert found["imagePullPolicy"] == "Always"
    assert found["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert found["readinessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    assert found["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert made["spec"]["volumes"][0]["configMap"] == {"name": "x", "defaultMode": 420}
    assert made["spec"]["volumes"][1] == {"name": "e", "emptyDir": {}}
    assert made["status"]["qosClass"] == "Guaranteed"


async def test_defaults_of_a_service(api: Api) -> None:
    body = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}}
    spec = (await api.create(api.at("services"), body)).ok(201)["spec"]
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert (spec["type"], spec["sessionAffinity"], spec["internalTrafficPolicy"]) == (
        "ClusterIP",
        "None",
        "Cluster",
    )
    assert spec["clusterIPs"] == [spec["clusterIP"]] or len(spec["clusterIPs"]) == 2
    assert spec["ipFamilyPolicy"] == "SingleStack"
    headless = {"metadata": {"name": "h"}, "spec": {"ports": [{"port": 80}], "clusterIP": "None"}}
    spec = (await api.create(api.at("services"), headless)).ok(201)["spec"]
    assert spec["clusterIPs"] == ["None"]


async def test_two_services_have_two_addresses(api: Api) -> None:
    found = set()
    for name in ("a", "b"):
        body = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}}
        found.add((await api.create(api.at("services"), body)).ok(201)["spec"]["clusterIP"])
    assert len(found) == 2
    taken = {"metadata": {"name": "c"}, "spec": {"ports": [{"port": 80}], "clusterIP": found.pop()}}
    (await api.create(api.at("services"), taken)).fails(
        422, "Invalid", "provided IP is already allocated", causes=(("FieldValueInvalid", "spec.clusterIPs"),)
    )


async def test_unknown_fields_are_told(api: Api) -> None:
    body = {**config_map("a", x="1"), "dat": {}, "metadata": {"name": "a", "labls": {}}}
    made = await api.create(api.at("configmaps"), body)
    assert made.ok(201).keys() == {"kind", "apiVersion", "metadata", "data"}
    assert sorted(made.warnings) == [
        '299 - "unknown field \\"dat\\""',
        '299 - "unknown field \\"metadata.labls\\""',
    ]
    path = api.at("configmaps", "a")
    replaced = await api.replace(path, body)
    assert len(replaced.warnings) == 2
    patched = await api.patch(path, {"dat": "x"})
    assert patched.ok().keys() == {"kind", "apiVersion", "metadata", "data"}
    assert list(patched.warnings) == ['299 - "unknown field \\"dat\\""']


@pytest.mark.parametrize("verb", ["create", "replace", "patch"])
async def test_unknown_fields_are_refused_when_asked(api: Api, verb: str) -> None:
    path = api.at("configmaps", "a")
    body = {**config_map("a"), "dat": {}}
    if verb == "create":
        answer = await api.create(api.at("configmaps"), body, fieldValidation="Strict")
    else:
        (await api.create(api.at("configmaps"), config_map("a"))).ok(201)
        if verb == "replace":
            answer = await api.replace(path, body, fieldValidation="Strict")
        else:
            answer = await api.patch(path, {"dat": {}}, fieldValidation="Strict")
    if verb == "patch":
        answer.fails(422, "Invalid", "strict decoding error", 'unknown field "dat"')
    else:
        answer.fails(400, "BadRequest", 'strict decoding error: unknown field "dat"')


async def test_unknown_fields_are_dropped_in_silence_when_asked(api: Api) -> None:
    made = await api.create(api.at("configmaps"), {**config_map("a"), "dat": {}}, fieldValidation="Ignore")
    made.ok(201)
    assert not made.warnings


async def test_fields_that_stand_twice(api: Api) -> None:
    text = b'{"metadata":{"name":"a"},"data":{"x":"1"},"data":{"y":"2"}}'
    answer = await api.send("POST", api.at("configmaps"), text, fieldValidation="Strict")
    answer.fails(400, "BadRequest", 'strict decoding error: duplicate field "data"')
    made = await api.send("POST", api.at("configmaps"), text)
    assert list(made.warnings) == ['299 - "duplicate field \\"data\\""']
    assert made.ok(201)["data"] == {"y": "2"} or made.body["data"] == {"x": "1", "y": "2"}


async def test_field_validation_that_is_unknown(api: Api) -> None:
    answer = await api.create(api.at("configmaps"), config_map("a"), fieldValidation="Some")
    answer.fails(422, "Invalid", causes=(("FieldValueNotSupported", "fieldValidation"),))


async def test_a_long_manager(api: Api) -> None:
    answer = await api.create(api.at("configmaps"), config_map("a"), fieldManager="x" * 129)
    answer.fails(422, "Invalid", causes=(("FieldValueTooLong", "fieldManager"),))
