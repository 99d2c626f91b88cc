from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml

from podwire.kube.defaults import static_pod
from podwire.kube.objects import ContainerPort, Event, ObjectMeta, Pod, PodSecurityContext, PodSpec, Probe
from podwire.kube.printing import object_list, to_builtins, to_json, to_yaml
from tests.kube.helpers import pod


def test_json_has_sorted_keys_and_four_spaces() -> None:
    text = to_json(Pod(metadata=ObjectMeta(name="a", labels={"b": "1", "a": "2"})))
    assert text.startswith(
        '{\n    "apiVersion": "v1",\n    "kind": "Pod",\n    "metadata": {\n        "labels": {\n'
    )
    assert text.index('"a": "2"') < text.index('"b": "1"')
    assert text.endswith("}\n")


def test_defaults_that_are_not_empty_are_printed() -> None:
    spec = to_builtins(PodSpec())
    assert spec == {
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
    }
    assert to_builtins(ContainerPort(container_port=80)) == {"containerPort": 80, "protocol": "TCP"}


def test_zero_is_printed_where_it_differs_from_left_out() -> None:
    assert to_builtins(PodSpec(termination_grace_period_seconds=0))["terminationGracePeriodSeconds"] == 0
    assert to_builtins(PodSecurityContext(run_as_user=0)) == {"runAsUser": 0}
    assert (
        to_builtins(PodSpec(automount_service_account_token=False))["automountServiceAccountToken"] is False
    )
    assert "initialDelaySeconds" not in to_builtins(Probe(initial_delay_seconds=0))


def test_an_empty_security_context_is_printed_as_kubectl_does() -> None:
    assert to_builtins(PodSpec(security_context=PodSecurityContext()))["securityContext"] == {}


def test_names_are_those_of_the_api() -> None:
    text = to_json(pod())
    for wrong in ("host_port", "hostIp", "_"):
        assert wrong not in text
    assert '"hostPort": 8080' in text


@pytest.mark.parametrize("print_", [to_json, to_yaml])
def test_what_is_printed_is_read_again_as_the_same_pod(print_: Any) -> None:
    original = static_pod(pod(), node_name="n", source="file", path="/a")
    again = msgspec.convert(yaml.safe_load(print_(original)), Pod)
    assert again == original


def test_unknown_parts_of_a_pod_are_printed_as_they_came() -> None:
    text = pod().spec
    shaped = msgspec.structs.replace(
        text, affinity={"nodeAffinity": {"x": [1, {}, None]}}, topology_spread_constraints=[]
    )
    printed = to_builtins(shaped)
    assert printed["affinity"] == {"nodeAffinity": {"x": [1, {}, None]}}
    assert printed["topologySpreadConstraints"] == []


def test_events_show_all_their_fields() -> None:
    printed = to_builtins(Event())
    assert printed["firstTimestamp"] is None
    assert printed["reportingComponent"] == ""
    assert printed["involvedObject"] == {}


def test_a_list_is_what_kubectl_prints_around_objects() -> None:
    listed = json.loads(to_json(object_list([pod(), pod()])))
    assert (listed["apiVersion"], listed["kind"], listed["metadata"]) == (
        "v1",
        "List",
        {"resourceVersion": ""},
    )
    assert [item["metadata"]["name"] for item in listed["items"]] == ["web", "web"]


def test_yaml_has_the_style_of_kubectl() -> None:
    text = to_yaml(
        {
            "b": ["x", {"c": "1"}],
            "a": "true",
            "t": "2024-01-01T00:00:00Z",
            "m": "one\ntwo\n",
            "o": "on",
            "e": "",
        }
    )
    assert text == (
        'a: "true"\nb:\n- x\n- c: "1"\ne: ""\nm: |\n  one\n  two\no: "on"\nt: "2024-01-01T00:00:00Z"\n'
    )


def test_yaml_repeats_what_is_equal_instead_of_naming_it() -> None:
    shared = {"k": "v"}
    assert "&" not in to_yaml({"a": shared, "b": shared})


def test_characters_beyond_ascii_stay_readable() -> None:
    shown = {"a": "grüße", "b": "\U0001f600"}
    assert json.loads(to_json(shown)) == yaml.safe_load(to_yaml(shown)) == shown
    assert "grüße" in to_json(shown)
    assert "grüße" in to_yaml(shown)
