from __future__ import annotations

import json

import pytest

from podwire.kube.errors import ManifestError
from podwire.kube.manifest import load_manifest, load_pod
from podwire.kube.yamltree import MAX_BYTES
from tests.kube.helpers import WEB, errors, pod, spec


def test_a_manifest_becomes_a_pod_as_written() -> None:
    loaded = pod()
    assert loaded.metadata.name == "web"
    assert loaded.metadata.labels == {"app": "web"}
    (container,) = loaded.spec.containers
    assert container.command == ["/bin/busybox", "httpd"]
    assert (container.ports[0].container_port, container.ports[0].host_port) == (80, 8080)
    assert loaded.metadata.namespace == ""


@pytest.mark.parametrize(
    "text", ["", "\n \n", "# only this\n", "---\n", "---\n# nothing\n---\n", "null\n", "\ufeff"]
)
def test_H08_an_empty_file_is_no_pod_and_no_error(text: str) -> None:
    assert load_pod(text.encode(), "empty.yaml") is None


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("apiVersion: apps/v1\nkind: Deployment\n", "kind Deployment is not supported here: only Pod"),
        (
            "apiVersion: apps/v1\nkind: DaemonSet\nbogus: 1\n",
            "kind DaemonSet is not supported here: only Pod",
        ),
        (
            "kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1\n",
            "kind Kustomization is not supported here: only Pod",
        ),
        (
            "apiVersion: v1\nkind: PodList\nitems: []\n",
            "kind PodList is not supported here: only Pod, one a file",
        ),
        ("apiVersion: v1\nkind: pod\n", 'kind pod is not supported here: only Pod, did you mean "Pod"?'),
    ],
)
def test_H10_other_kinds_give_one_short_message(head: str, message: str) -> None:
    (error,) = errors(head + "spec: {replicas: 3, template: {}}\n")
    assert error.message == message
    assert error.text == message
    assert error.line == head.splitlines().index(next(x for x in head.splitlines() if "kind" in x)) + 1


@pytest.mark.parametrize(
    ("text", "line", "field", "part"),
    [
        ("apiVersion: v1\nmetadata: {name: a}\n", 1, "kind", 'write "kind: Pod"'),
        ("kind: Pod\nmetadata: {name: a}\n", 1, "apiVersion", 'write "apiVersion: v1"'),
        ("kind: Pod\napiVersion: v2\n", 2, "apiVersion", 'a Pod is of "v1"'),
        ("- a\n", 1, "", "this is not a Pod"),
        ("just text\n", 1, "", "this is not a Pod"),
        (WEB + "---\n" + WEB, 15, "", "one Pod a file"),
    ],
)
def test_what_is_not_one_pod_is_refused(text: str, line: int, field: str, part: str) -> None:
    (error,) = errors(text)
    assert (error.line, error.field) == (line, field)
    assert part in error.message


def test_documents_without_content_do_not_count() -> None:
    assert pod("---\n# before\n---\n" + WEB + "---\n# behind\n").metadata.name == "web"


def test_a_file_of_nothing_but_document_marks_is_refused() -> None:
    (error,) = errors("---\n" * 200)
    assert (error.line, error.message) == (101, "more than 100 documents")


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("kind: Pod\n  apiVersion: v1\n", 2, 13),
        ("kind: Pod\n\tname: a\n", 2, 1),
        ("a: [1,\n", 2, 1),
        ("a: *nothing\n", 1, 4),
        ("a: &x\n- *x\n", 2, 3),
        ("a: {b: c\n", 2, 1),
        ("a: !custom b\n", 1, 4),
        ("ok: 1\na: \x01\n", 2, 4),
    ],
)
def test_syntax_errors_tell_line_and_column(text: str, line: int, column: int) -> None:
    (error,) = errors(text)
    assert (error.file, error.line, error.column) == ("web.yaml", line, column)
    assert str(error).startswith(f"web.yaml:{line}:{column}: ")


@pytest.mark.parametrize(
    ("data", "line", "column", "part"),
    [
        (WEB.encode("utf-16"), 1, 1, "UTF-16"),
        (b"kind: Pod\nname: caf\xe9\n", 2, 10, "0xe9 is not UTF-8"),
        (b"kind: Pod\n\x00\n", 2, 1, "NUL byte"),
        (b"#" * (MAX_BYTES + 1), 1, 1, "10 MiB"),
    ],
)
def test_bytes_that_are_no_text_are_refused(data: bytes, line: int, column: int, part: str) -> None:
    (error,) = errors(data)
    assert (error.line, error.column) == (line, column)
    assert part in error.message


def test_a_byte_order_mark_is_tolerated() -> None:
    assert load_pod(b"\xef\xbb\xbf" + WEB.encode(), "web.yaml") == pod()


def test_json_is_read_like_yaml() -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": {"note": "a/b \U0001f600 \\ud83d", "tab": "\t"}},
        "spec": {"containers": [{"name": "a"}]},
    }
    for indent in (None, 4, "\t"):
        assert pod(json.dumps(document, indent=indent)).metadata.annotations == {
            "note": "a/b \U0001f600 \\ud83d",
            "tab": "\t",
        }


def test_half_a_surrogate_in_json_is_an_error() -> None:
    text = '{"apiVersion": "v1", "kind": "Pod",\n "metadata": {"name": "\\ud83d"}}'
    (error,) = errors(text)
    assert error.line == 2


def test_all_errors_of_a_manifest_are_told_in_the_order_of_the_text() -> None:
    text = """\
apiVersion: v1
kind: Pod
metadata:
  name: web
  lables: {}
spec:
  containers:
  - name: a
    comand: [x]
    ports:
    - containerPort: http
    - protocol: UDP
    - containerPort: "80"
  restartPolicy: [Always]
"""
    found = [(e.line, e.field, e.value, e.message) for e in errors(text)]
    assert found == [
        (5, "metadata.lables", "", 'unknown field: did you mean "labels"?'),
        (9, "spec.containers[0].comand", "", 'unknown field: did you mean "command"?'),
        (11, "spec.containers[0].ports[0].containerPort", "http", "a whole number is expected"),
        (12, "spec.containers[0].ports[1].containerPort", "", "this field is required"),
        (
            13,
            "spec.containers[0].ports[2].containerPort",
            '"80"',
            "a whole number is expected and this is a string: write it without quotes",
        ),
        (14, "spec.restartPolicy", "a list", "a string is expected here"),
    ]


@pytest.mark.parametrize(
    ("container", "field", "message"),
    [
        ("env: [{name: A, value: 8080}]", "env[0].value", 'the number 8080: quote it ("8080")'),
        ("env: [{name: A, value: 1.10}]", "env[0].value", 'the number 1.1: quote it ("1.10")'),
        ("env: [{name: A, value: on}]", "env[0].value", 'the boolean true: quote it ("on")'),
        ("env: [{name: A, value: No}]", "env[0].value", 'the boolean false: quote it ("No")'),
        ("env: [{name: A, value: 0x1F}]", "env[0].value", 'the number 31: quote it ("0x1F")'),
        ("env: [{name: A, value: 1_000}]", "env[0].value", 'the number 1000: quote it ("1_000")'),
        ("command: [sleep, 5]", "command[1]", 'the number 5: quote it ("5")'),
        ("command: [sleep, ~]", "command[1]", "an empty item"),
        ("ports: [{containerPort: 0100}]", "ports[0].containerPort", "the octal number 64"),
        ("ports: [{containerPort: 0o100}]", "ports[0].containerPort", "the octal number 64"),
        ("ports: [{containerPort: 80.0}]", "ports[0].containerPort", "a whole number is expected"),
        ("ports: [{containerPort: true}]", "ports[0].containerPort", "a whole number is expected"),
        ("ports: [{containerPort: 99999999999999999999}]", "ports[0].containerPort", "64 bits"),
        ("ports: {containerPort: 80}", "ports", "a list is expected"),
        ("ports: [80]", "ports[0]", "a mapping is expected"),
        ("stdin: 'true'", "stdin", "true or false is expected: write it without quotes"),
        ("stdin: 1", "stdin", "true or false is expected"),
        ('command: ["a\\0b"]', "command[0]", "NUL"),
        ("resources: {limits: {cpu: .nan}}", "resources.limits.cpu", "not a number that JSON can hold"),
        ("resources: {limits: {cpu: 1, cpu: 2}}", "resources.limits.cpu", "twice, first in line 1"),
        ("name: b", "name", "twice, first in line 1"),
        ("resources: {? [a] : b}", "resources", "a key must be a string"),
        ("livenessProbe: {httpGet: {port: yes}}", "livenessProbe.httpGet.port", "a whole number is expected"),
    ],
)
def test_wrong_types_and_yaml_traps_show_the_fix(container: str, field: str, message: str) -> None:
    (error,) = errors(spec(container))
    assert error.field == f"spec.containers[0].{field}"
    assert message in error.message
    assert error.line == 1


@pytest.mark.parametrize(
    ("label", "part"),
    [
        ("on: x", 'the boolean true: quote it ("on")'),
        ("010: x", 'the number 8: quote it ("010")'),
        ("~: x", "null"),
    ],
)
def test_keys_that_are_no_strings_show_the_fix(label: str, part: str) -> None:
    (error,) = errors(WEB.replace("app: web", label))
    assert (error.line, error.field) == (6, "metadata.labels")
    assert part in error.message


def test_strings_and_numbers_that_yaml_1_1_tools_keep_are_kept() -> None:
    text = WEB.replace(
        "labels:\n    app: web", 'annotations: {a: "on", b: 12:30:45, c: 1.2.3, d: , 8080: 2024-01-01}'
    )
    annotations = pod(text).metadata.annotations
    assert annotations == {"a": "on", "b": "12:30:45", "c": "1.2.3", "d": "", "8080": "2024-01-01"}


def test_null_is_the_same_as_left_out() -> None:
    with_nulls = WEB.replace("spec:\n", "spec:\n  hostname: ~\n  volumes: null\n  dnsConfig:\n")
    assert pod(with_nulls) == pod()


def test_booleans_of_yaml_1_1_are_booleans() -> None:
    assert pod(spec("stdin: yes", "hostNetwork: on")).spec.host_network is True


def test_anchors_and_merge_keys_are_resolved() -> None:
    text = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - &base
    name: a
    command: &command [sleep, "5"]
  - <<: *base
    name: b
    args: *command
"""
    first, second = pod(text).spec.containers
    assert (first.name, first.command) == ("a", ["sleep", "5"])
    assert (second.name, second.command, second.args) == ("b", ["sleep", "5"], ["sleep", "5"])


def test_of_several_merged_mappings_the_first_counts() -> None:
    text = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - &one {name: a, image: one}
  - &two {name: b, image: two, workingDir: /two}
  - {name: c, <<: [*one, *two]}
"""
    merged = pod(text).spec.containers[2]
    assert (merged.name, merged.image, merged.working_dir) == ("c", "one", "/two")


def test_an_error_in_a_merged_key_is_placed_where_it_is_written() -> None:
    text = WEB + "  - <<: &base\n      comand: [a]\n    name: b\n"
    (error,) = errors(text)
    assert (error.line, error.field) == (15, "spec.containers[1].comand")


def test_an_alias_bomb_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 12):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    (error,) = errors("\n".join(lines))
    assert "more than 100000 values" in error.message


@pytest.mark.parametrize("text", ["[" * 500, "{a: " * 500, "- " * 5000 + "a", "a: &a [" + "[" * 200])
def test_deep_nesting_is_refused(text: str) -> None:
    (error,) = errors(text)
    assert error.line == 1
    assert "nest" in error.message


def test_deep_nesting_through_aliases_is_refused() -> None:
    nested = (
        "a0: &a0 "
        + "[" * 30
        + "]" * 30
        + "\na1: &a1 "
        + "[" * 30
        + "*a0"
        + "]" * 30
        + "\na2: [[[[[*a1]]]]]\n"
    )
    (error,) = errors(nested)
    assert "nested more than 64 levels" in error.message


def test_unknown_text_that_looks_like_nothing_known_has_no_suggestion() -> None:
    (error,) = errors(WEB + "xyzzy: 1\n")
    assert (error.field, error.message) == ("xyzzy", "unknown field")


def test_a_field_in_the_wrong_case_is_suggested() -> None:
    (error,) = errors(spec("livenessprobe: {}"))
    assert error.message == 'unknown field: did you mean "livenessProbe"?'


def test_an_error_prints_place_field_value_and_expectation() -> None:
    (error,) = errors(WEB.replace("8080", "808080"))
    assert str(error) == (
        "web.yaml:13:17: spec.containers[0].ports[0].hostPort: 808080: 0 to 65535 is expected"
    )


def test_long_and_unprintable_values_are_shortened_to_one_line() -> None:
    (error,) = errors(spec('ports: [{containerPort: "a\\nb' + "x" * 500 + '"}]'))
    assert len(error.value) <= 60
    assert "\n" not in str(error)


def test_the_error_names_the_pod_and_the_reason() -> None:
    with pytest.raises(ManifestError) as caught:
        load_pod(
            WEB.replace("name: web\n  labels", "name: web\n  namespace: shop\n  labels").replace(
                ": 80\n", ": 0\n"
            ),
            "f",
        )
    assert (caught.value.reason, caught.value.pod) == ("FailedValidation", "shop/web")
    with pytest.raises(ManifestError) as caught:
        load_pod(WEB + "bogus: 1\n", "f")
    assert (caught.value.reason, caught.value.pod) == ("FailedParse", "default/web")


def test_validation_errors_point_to_the_line_of_the_field() -> None:
    text = WEB.replace("name: web\n  labels", "name: Web\n  labels").replace("app: web", "app: -web-")
    found = [(e.line, e.column, e.field, e.value) for e in errors(text)]
    assert found == [(4, 9, "metadata.name", '"Web"'), (6, 10, "metadata.labels[app]", '"-web-"')]


def test_G09_a_host_port_on_all_addresses_and_on_one_is_a_warning_with_its_line() -> None:
    text = WEB + "    - containerPort: 81\n      hostPort: 8080\n      hostIP: 1.2.3.4\n"
    loaded = load_manifest(text, "web.yaml")
    assert loaded is not None
    (warning,) = loaded.warnings
    assert (warning.line, warning.field) == (15, "spec.containers[0].ports[1].hostPort")
    assert "the more specific hostIP wins" in warning.message


@pytest.mark.parametrize("key", ["a b", "²", "08.", "a]b"])
def test_a_bad_label_key_is_placed_or_else_its_mapping(key: str) -> None:
    (error,) = errors(WEB.replace("app: web", f"'{key}': x"))
    assert error.line == 6
