#!/usr/bin/env bash
# Builds the client-go informer beside this script, once per machine and version, and prints its path.
#
#   DRYDOCK_CACHE   where builds are kept (default: ${XDG_CACHE_HOME:-~/.cache}/drydock)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DRYDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drydock}/clients
command -v go >/dev/null || { echo "clients: Go is missing; install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }

export GOWORK=off CGO_ENABLED=0
key=$({ cat "$here"/{go.mod,go.sum,main.go}; go version; } | sha256sum | cut -c1-12)
binary=$cache/informer-$key
if [ ! -x "$binary" ]; then
  mkdir -p "$cache"
  echo "clients: building the client-go informer once into $binary (a minute on 2 cores)" >&2
  work=$(mktemp -d "$cache/.build-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  (cd "$here" && go build -mod=readonly -trimpath -buildvcs=false -ldflags="-s -w" -o "$work/informer" .)
  # Renamed when complete, so that an interrupted build leaves nothing.
  mv -T "$work/informer" "$binary"
fi
echo "$binary"
