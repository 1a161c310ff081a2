#!/usr/bin/env bash
# Starts the server in standalone mode and the controller on loopback, with two nodes and a small application.
#
#   run.sh run    leaves them running and prints commands to try; Ctrl-C stops everything
#   run.sh demo   runs these commands, checks their effects, and exits with an error if one is missing
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$(cd "$here/../../bin" && pwd)
mode=${1:-run}
kubectl_path=$("$here/kubectl.sh")
state=$(mktemp -d "${TMPDIR:-/tmp}/drydock-XXXXXX")
children=()

finish() {
  trap - EXIT INT TERM
  for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
  for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
  if [ "${failed:-0}" = 1 ]; then
    echo "the logs are in $state" >&2
  else
    rm -rf "$state"
  fi
}
trap finish EXIT
trap 'exit 130' INT TERM

fail() {
  failed=1
  echo "FAILED: $*" >&2
  for log in "$state"/*.log; do echo "--- last lines of $(basename "$log")" >&2; tail -n 15 "$log" >&2; done
  exit 1
}
# The plugin is found on PATH, and its commands get the kubeconfig from the environment.
export PATH="$bin:$PATH" KUBECONFIG="$state/kubeconfig"
kubectl() { "$kubectl_path" "$@"; }
# eventually SECONDS FAILURE COMMAND…: repeats the command until it succeeds.
eventually() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || fail "$what"
    for child in "${children[@]}"; do kill -0 "$child" 2>/dev/null || fail "a process ended while waiting: $what"; done
    sleep 0.2
  done
}
show() { printf '\n\033[1m$ kubectl %s\033[0m\n' "$*"; kubectl "$@"; }

"$bin/drydock-apiserver" standalone --data-dir "$state/data" --bind-address 127.0.0.1 --secure-port 0 \
  --write-kubeconfig "$state/kubeconfig" >"$state/apiserver.log" 2>&1 &
children+=($!)
eventually 30 "the server did not become ready" test -s "$state/kubeconfig"
eventually 30 "the server did not become ready" kubectl get --raw /readyz
"$bin/drydock-controller" --kubeconfig "$state/kubeconfig" --leader-elect --leader-elect-resource-namespace default \
  --bind-address 127.0.0.1 --secure-port 0 >"$state/controller.log" 2>&1 &
children+=($!)
kubectl apply -f "$here/nodes.yaml" -f "$here/application.yaml" >/dev/null || fail "the application could not be applied"
eventually 30 "the pods did not start" \
  kubectl wait --for=jsonpath='{.status.phase}'=Running pod/web-1 pod/web-2 pod/web-3 pod/database-0 --timeout=1s

if [ "$mode" = run ]; then
  cat <<TEXT

Drydock runs in standalone mode, without a cluster; nodes and pods are simulated. All files are in $state.
There are two nodes and a small application; the disruption budget of the database allows no eviction.
In another terminal:

  export KUBECONFIG=$state/kubeconfig PATH=$bin:$(dirname "$kubectl_path"):\$PATH
  kubectl get pods -o wide                       # where the pods run
  kubectl drydock preflight node-a               # what would block a drain
  kubectl drydock drain node-a --wait            # take node-a out of service, and watch
  kubectl drydock explain database-0             # in another terminal: why it is still there
  kubectl delete pdb database                    # unblock the database
  kubectl drydock complete drain-node-a --wait   # return node-a to service

Ctrl-C stops everything.
TEXT
  wait -n "${children[@]}" || true
  fail "a process ended unexpectedly"
fi

gone() { [ -z "$(kubectl get pod "$@" --ignore-not-found -o name)" ]; }
requests_name_the_budget() { kubectl get evictionrequests.coordination.k8s.io -o json | grep -qi 'budget.*database\|database.*budget'; }

show get pods -o wide
show drydock preflight node-a && fail "nothing blocks, in spite of the budget of the database"
show drydock drain node-a --name replace-disk --reason 'a disk is to be replaced'
eventually 30 "the web pods did not leave node-a" gone web-1 web-2
eventually 30 "no request reports that a budget blocks the database" requests_name_the_budget
[ "$(kubectl get node node-a -o jsonpath='{.spec.unschedulable}')" = true ] || fail "node-a is not cordoned"
gone database-0 && fail "the database was evicted in spite of its budget"
gone web-3 && fail "a pod of node-b was evicted"
show get nm,er -o wide
show drydock explain database-0
kubectl drydock explain database-0 | grep -q 'kubectl get pdb database' || fail "the explanation does not name the budget"
show delete pdb database
show drydock drain node-a --name replace-disk --wait --timeout 30s || fail "node-a was not drained"
gone database-0 || fail "the database is still there"
show drydock status
show drydock complete replace-disk --wait --timeout 30s || fail "the maintenance could not be completed"
uncordoned() { [ "$(kubectl get node node-a -o jsonpath='{.spec.unschedulable}')" != true ]; }
eventually 30 "node-a was not uncordoned" uncordoned
show get nodes
printf '\nnode-a was drained as planned, the budget was respected, and the node is back in service.\n'
