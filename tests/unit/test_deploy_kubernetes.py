# SPDX-License-Identifier: Apache-2.0
"""The manifests in ``deploy/kubernetes``: Kubernetes' own schemas, and what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="the extra 'docs' is not installed")
kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="the extra 'docs' is not installed"
)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml") if path.stem != "kustomization")
PAGE = (ROOT / "docs/quickstart-kubernetes.md").read_text("utf-8")
CONTAINERFILE = (ROOT / "deploy/container/Containerfile").read_text("utf-8")
#: The oldest that still gets fixes upstream, and a newer one.
VERSIONS = ("1.30", "1.33")


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))


def daemon():
    (found,) = documents("daemonset.yaml")
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_manifests_are_what_kubernetes_takes(name, version):
    for document in documents(name):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_manifest_is_refused():
    wrong = daemon()
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_all_that_is_to_be_applied_is_in_the_kustomization():
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))
    assert set(kustomization["resources"]) == set(FILES) - {"engine.yaml"}


def test_the_daemon_is_not_privileged_and_has_four_capabilities():
    spec = daemon()["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    rights = container["securityContext"]
    assert not rights["privileged"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["readOnlyRootFilesystem"]
    unit = (ROOT / "systemd/gpucorrelate.service").read_text("utf-8")
    (line,) = (row for row in unit.splitlines() if row.startswith("CapabilityBoundingSet="))
    wanted = {name.removeprefix("CAP_") for name in line.partition("=")[2].split()}
    assert set(rights["capabilities"]["add"]) == wanted
    assert rights["capabilities"]["drop"] == ["ALL"]
    assert spec["automountServiceAccountToken"] is False
    for name in wanted:
        assert f"`{name}`" in PAGE


def test_engines_reach_the_ingest_socket_and_not_the_control_socket():
    spec = daemon()["spec"]["template"]["spec"]
    shared = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    args = spec["containers"][0]["args"]
    mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
    socket = args[args.index("--ingest") + 1]
    assert shared[mounts[socket.rpartition("/")[0]]] == "/run/gpucorrelate/ingest"
    # The control socket's folder is nobody else's.
    assert mounts["/run/gpucorrelate"] not in shared
    (engine,) = documents("engine.yaml")
    pod = engine["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["hostPath"]["path"] == "/run/gpucorrelate/ingest"
    (mount,) = pod["containers"][0]["volumeMounts"]
    # Where agents look for the socket unless they are told otherwise.
    from gpucorrelate.daemon.config import DaemonConfig

    assert mount["mountPath"] == str(DaemonConfig().ingest_path.parent)
    assert socket.rpartition("/")[2] == DaemonConfig().ingest_path.name
    assert f'"{socket}"' in CONTAINERFILE
