#!/usr/bin/env bash
# Builds the GitOps clients of this module, once per machine and version, and prints their folder: helm, kustomize, and the
# programs of this folder (argo-cd, controller, flux, terraform).
#
#   DRYDOCK_CACHE   where builds are kept (default: ${XDG_CACHE_HOME:-~/.cache}/drydock)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DRYDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drydock}/clients
command -v go >/dev/null || { echo "clients: Go is missing; install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }

export GOWORK=off CGO_ENABLED=0
key=$({ cat "$here"/{,argo-cd/}{go.mod,go.sum} "$here"/*/main.go; go version; } | sha256sum | cut -c1-12)
folder=$cache/gitops-$key
if [ ! -d "$folder" ]; then
  mkdir -p "$cache"
  exec 9>"$cache/.gitops.lock"
  flock 9
fi
if [ ! -d "$folder" ]; then
  echo "clients: building helm, kustomize and the GitOps programs once into $folder (6 minutes on 2 cores)" >&2
  work=$(mktemp -d "$cache/.build-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  (cd "$here" && go build -mod=readonly -trimpath -buildvcs=false -ldflags="-s -w" -o "$work/" \
    helm.sh/helm/v4/cmd/helm sigs.k8s.io/kustomize/kustomize/v5 ./controller ./flux ./terraform)
  # A module of its own: it fixes the versions of Kubernetes' modules, older ones than the others use.
  (cd "$here/argo-cd" && go build -mod=readonly -trimpath -buildvcs=false -ldflags="-s -w" -o "$work/argo-cd" .)
  chmod a+rx "$work"
  # Renamed when complete, so that an interrupted build leaves nothing.
  mv -T "$work" "$folder"
fi
echo "$folder"
