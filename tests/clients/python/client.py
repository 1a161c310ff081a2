"""Uses the official Python client with our kinds.

    client.py KUBECONFIG

Exits with 0 and prints "done", or fails with an assertion.
"""

import sys

from kubernetes import client, config, dynamic, watch

GROUP, VERSION = "coordination.k8s.io", "v1alpha3"
NAME = "python-client"


def maintenance(**spec):
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["nowhere"]}]}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "NodeMaintenance",
        "metadata": {"name": NAME, "labels": {"suite": "python"}},
        "spec": {"nodeSelector": {"nodeSelectorTerms": [term]}, **spec},
    }


def custom_objects(api):
    """The client for kinds without generated classes."""
    custom = client.CustomObjectsApi(api)
    place = (GROUP, VERSION, "nodemaintenances")
    before = custom.list_cluster_custom_object(*place, label_selector="suite=python")
    assert before["items"] == [], before
    created = custom.create_cluster_custom_object(*place, maintenance())
    assert created["spec"]["stage"] == "Idle", created
    patched = custom.patch_cluster_custom_object(*place, NAME, {"spec": {"reason": "why"}})
    assert patched["spec"]["reason"] == "why", patched
    status = {"status": {"drainStatus": {"drainMessage": "Draining"}}}
    patched = custom.patch_cluster_custom_object_status(*place, NAME, status)
    assert patched["status"]["drainStatus"]["drainMessage"] == "Draining", patched
    stale = dict(created, spec=dict(created["spec"], reason="stale"))
    try:
        custom.replace_cluster_custom_object(*place, NAME, stale)
        raise AssertionError("a stale replacement succeeded")
    except client.ApiException as error:
        assert error.status == 409, error
    events = watch.Watch().stream(
        custom.list_cluster_custom_object,
        *place,
        label_selector="suite=python",
        resource_version=before["metadata"]["resourceVersion"],
        timeout_seconds=3,
    )
    seen = [event["type"] for event in events]
    assert seen == ["ADDED", "MODIFIED", "MODIFIED"], seen
    deleted = custom.delete_cluster_custom_object(*place, NAME)
    assert deleted["status"] == "Success", deleted


def dynamic_client(api):
    """The client that uses discovery."""
    resources = dynamic.DynamicClient(api).resources
    kind = resources.get(api_version=f"{GROUP}/{VERSION}", kind="NodeMaintenance")
    assert (kind.name, kind.namespaced) == ("nodemaintenances", False), kind
    created = kind.create(body=maintenance())
    found = kind.get(label_selector="suite=python")
    assert [item.metadata.name for item in found.items] == [NAME], found
    seen = []
    for event in kind.watch(timeout=10, label_selector="suite=python"):
        seen.append(event["type"])
        if event["type"] == "ADDED":
            kind.delete(name=created.metadata.name)
        else:
            break
    assert seen == ["ADDED", "DELETED"], seen


def main():
    api = config.new_client_from_config(sys.argv[1])
    custom_objects(api)
    dynamic_client(api)
    print("done")


if __name__ == "__main__":
    main()
