"""docker/kubernetes: every field is one of the API's generated client, and fits the images."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "docker" / "kubernetes"
OBJECTS = {
    f"{manifest['kind']}/{manifest['metadata']['name']}": manifest
    for name in ("lake.yaml", "stream.yaml")
    for manifest in yaml.safe_load_all((PLACE / name).read_text())
}
VALUES = yaml.safe_load((PLACE / "airflow-values.yaml").read_text())
SETTINGS = dict(
    line.split(" ", 1)
    for line in OBJECTS["ConfigMap/spark-settings"]["data"]["spark-defaults.conf"].splitlines()
)
POD = yaml.safe_load(OBJECTS["ConfigMap/spark-settings"]["data"]["pod.yaml"])


def unknown(value: Any, kind: str, at: str) -> Iterator[str]:
    """Yield the fields that a type of the API lacks."""
    if inner := re.fullmatch(r"list\[(.+)\]", kind):
        for number, item in enumerate(value):
            yield from unknown(item, inner[1], f"{at}[{number}]")
    elif inner := re.fullmatch(r"dict\(str, (.+)\)", kind):
        for key, item in value.items():
            yield from unknown(item, inner[1], f"{at}.{key}")
    elif hasattr(client, kind) and hasattr(getattr(client, kind), "attribute_map"):
        model = getattr(client, kind)
        types = {field: model.openapi_types[name] for name, field in model.attribute_map.items()}
        for key, item in value.items():
            if key in types:
                yield from unknown(item, types[key], f"{at}.{key}")
            else:
                yield f"{at}.{key} is not a field of {kind}"


@pytest.mark.parametrize("name", OBJECTS)
def test_every_field_is_one_of_the_api(name: str) -> None:
    manifest = OBJECTS[name]
    group = "".join(part.capitalize() for part in manifest["apiVersion"].split("/")[-1:])
    assert list(unknown(manifest, f"{group}{manifest['kind']}", name)) == []


def test_the_pod_template_is_a_pod_of_the_restricted_kind() -> None:
    assert list(unknown(POD, "V1Pod", "pod")) == []
    deployments = [
        manifest["spec"]["template"]["spec"]
        for name, manifest in OBJECTS.items()
        if name.startswith("Deployment/")
    ]
    assert len(deployments) == 2
    for spec in (POD["spec"], *deployments):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            rights = container["securityContext"]
            assert rights == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_users_are_those_of_the_images() -> None:
    users = set(
        re.findall(r"(?m)^USER ([1-9]\d*):0$", (ROOT / "docker" / "Dockerfile").read_text())
    )
    contexts: list[Mapping[str, Any]] = [
        POD["spec"]["securityContext"],
        VALUES["securityContexts"]["pod"],
    ]
    assert users == {str(context["runAsUser"]) for context in contexts} == {str(VALUES["uid"])}


def test_every_pod_has_a_service_account_and_no_key() -> None:
    accounts = {name.partition("/")[2] for name in OBJECTS if name.startswith("ServiceAccount/")}
    assert {
        subject["name"] for subject in OBJECTS["RoleBinding/lake-spark"]["subjects"]
    } == accounts
    for role in ("driver", "executor"):
        assert SETTINGS[f"spark.kubernetes.authenticate.{role}.serviceAccountName"] in accounts
    assert VALUES["workers"]["serviceAccount"]["name"] in accounts
    text = "".join(path.read_text() for path in PLACE.iterdir())
    assert not re.search(r"access\.key|secret\.key|aws_secret|password", text)


def test_connections_are_json_and_lead_to_the_lake() -> None:
    connections = {
        entry["name"]: json.loads(entry["value"])
        for entry in VALUES["env"]
        if entry["name"].startswith("AIRFLOW_CONN_")
    }
    assert connections["AIRFLOW_CONN_SPARK_DEFAULT"]["extra"] == {
        "deploy-mode": "cluster",
        "namespace": "lake",
    }
    assert SETTINGS["spark.kubernetes.file.upload.path"].startswith(
        connections["AIRFLOW_CONN_OPAL_DEFAULT"]["host"]
    )
    paths = {mount["mountPath"] for mount in VALUES["volumeMounts"]}
    assert {entry["value"] for entry in VALUES["env"] if entry["name"] == "SPARK_CONF_DIR"} == paths
