"""examples/kubernetes: the manifests are valid and fit each other, and their commands run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys

import pytest
from launched import EXAMPLES, Launched

from pccl._run import keys
from pccl.lab.ports import free_ports

yaml = pytest.importorskip("yaml")
FILES = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))


def manifests():
    return [document for file in FILES for document in yaml.safe_load_all(file.read_text())]


def named(kind):
    return {one["metadata"]["name"]: one for one in manifests() if one["kind"] == kind}


def container(manifest):
    [only] = manifest["spec"]["template"]["spec"]["containers"]
    return only


def masters_of_workers():
    [job] = named("Job").values()
    return {entry["name"]: entry["value"] for entry in container(job)["env"]}["PCCL_MASTER"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_manifests_follow_the_schema(file):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all(file.read_text()):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_services_select_the_pods_of_the_masters():
    services, deployments = named("Service"), named("Deployment")
    assert services.keys() == deployments.keys()
    for name, service in services.items():
        deployment = deployments[name]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert service["spec"]["selector"].items() <= labels.items()
        assert not any(
            service["spec"]["selector"].items() <= other["spec"]["template"]["metadata"]["labels"].items()
            for other in deployments.values()
            if other is not deployment
        )
        [port] = service["spec"]["ports"]
        assert port["targetPort"] == container(deployment)["ports"][0]["containerPort"]


def test_all_are_given_the_same_masters():
    listed = masters_of_workers()
    assert {entry.partition(":")[0] for entry in listed.split(",")} == named("Service").keys()
    for name, deployment in named("Deployment").items():
        arguments = container(deployment)["args"]
        assert f"--masters={listed}" in arguments
        assert f"--advertise={name}:48148" in arguments


def pods():
    return {one["metadata"]["name"]: one["spec"]["template"] for one in manifests() if "template" in one.get("spec", {})}


@pytest.mark.parametrize("name", pods())
def test_pods_have_no_privileges(name):
    """What the restricted Pod Security Standard demands, and a root file system that cannot be written."""
    spec = pods()[name]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] != 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for one in spec["containers"]:
        allowed = one["securityContext"]
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["readOnlyRootFilesystem"] is True
        assert allowed["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", pods())
def test_only_pods_of_the_run_reach_a_pod(name):
    labels = pods()[name]["metadata"]["labels"]
    [policy] = [
        one["spec"]
        for one in named("NetworkPolicy").values()
        if one["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    ]
    assert policy["policyTypes"] == ["Ingress"]
    [rule] = policy["ingress"]
    [port] = rule["ports"]
    assert port["port"] == pods()[name]["spec"]["containers"][0]["ports"][0]["containerPort"]
    callers = {
        other
        for other, pod in pods().items()
        for source in rule["from"]
        if source["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    }
    workers, masters = set(named("Job")), set(named("Deployment"))
    assert all(source.keys() == {"podSelector"} for source in rule["from"])
    assert callers == (workers if name in workers else workers | masters)


@pytest.mark.parametrize("name", pods())
def test_masters_and_workers_have_a_file_of_keys_each(name):
    readme = (EXAMPLES / "kubernetes" / "README.md").read_text()
    files = dict(re.findall(r"kubectl create secret generic (\S+) --from-file=(\S+)", readme))
    spec = pods()[name]["spec"]
    [secret] = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
    assert secret["defaultMode"] == 0o400
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"]  # else it cannot read them
    [only] = spec["containers"]
    assert {"name": "keys", "mountPath": "/keys", "readOnly": True} in only["volumeMounts"]
    named_keys = [entry["value"] for entry in only.get("env", ()) if entry["name"] == "PCCL_KEYS"]
    named_keys += [part.removeprefix("--keys=") for part in only["args"] if part.startswith("--keys=")]
    assert named_keys == [f"/keys/{files[secret['secretName']]}"]
    assert files[secret["secretName"]] == ("run.peer" if name in named("Job") else "run.master")


def mount(folder):
    """Keys as kubelet shows those of a Secret: links to files of root that the group of the pod may read."""
    data = folder / "..2026"
    data.mkdir()
    for path in keys.write_files(data / "run", keys.new_keys()):
        (folder / path.name).symlink_to(f"..data/{path.name}")
        if os.geteuid() == 0:
            os.chown(path, 0, 10001)
            path.chmod(0o440)
    (folder / "..data").symlink_to("..2026")


def test_the_commands_survive_the_loss_of_a_worker_and_of_the_master(tmp_path):
    pytest.importorskip("torch")
    mount(tmp_path)
    ports = dict(zip(named("Deployment"), free_ports(2), strict=True))

    def here(text, name=""):
        """With addresses of this machine for those of the cluster."""
        for service, port in ports.items():
            text = text.replace(f"{service}:48148", f"127.0.0.1:{port}")
        text = text.replace("/keys/", f"{tmp_path}/")
        return text.replace("0.0.0.0:48148", f"127.0.0.1:{ports.get(name)}")

    [job] = named("Job").values()
    program = [sys.executable, str(EXAMPLES.parent / container(job)["command"][1]), "1000000", "2"]
    place = {entry["name"]: here(entry["value"]) for entry in container(job)["env"] if entry["name"].startswith("PCCL_")}
    with contextlib.ExitStack() as stack:
        running = {}
        for name, deployment in named("Deployment").items():
            assert container(deployment)["command"] == ["pccl", "master"]
            command = [sys.executable, "-m", "pccl", "master", *(here(part, name) for part in container(deployment)["args"])]
            running[name] = stack.enter_context(Launched(command))
            running[name].expect("listening")
        survivor, victim = (stack.enter_context(Launched(program, place)) for _ in range(2))
        survivor.expect("step 100: 2 workers")
        os.kill(victim.process.pid, signal.SIGKILL)
        survivor.expect("step .*: 1 workers")
        stack.enter_context(Launched(program, place)).expect(r"joined at step [1-9]\d*: process \d+, 2 workers")
        os.kill(running["pccl-master"].process.pid, signal.SIGKILL)
        running["pccl-standby"].expect("takes over the run")
        survivor.expect("step .*: 2 workers", 2)
