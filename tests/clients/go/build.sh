#!/usr/bin/env bash
# Builds a client-go program of this module, once per machine and version, and prints its path.
#
#   build.sh PROGRAM   informer (this folder) or encodings (its folder)
#   DRYDOCK_CACHE      where builds are kept (default: ${XDG_CACHE_HOME:-~/.cache}/drydock)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=${1:-informer}
case $program in
  informer) package=. ;;
  *) package=./$program ;;
esac
cache=${DRYDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drydock}/clients
command -v go >/dev/null || { echo "clients: Go is missing; install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }

export GOWORK=off CGO_ENABLED=0
key=$({ cat "$here"/{go.mod,go.sum} "$here/$package/main.go"; go version; } | sha256sum | cut -c1-12)
binary=$cache/$program-$key
if [ ! -x "$binary" ]; then
  mkdir -p "$cache"
  echo "clients: building the client-go $program once into $binary (a minute on 2 cores)" >&2
  work=$(mktemp -d "$cache/.build-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  (cd "$here" && go build -mod=readonly -trimpath -buildvcs=false -ldflags="-s -w" -o "$work/$program" "$package")
  # Renamed when complete, so that an interrupted build leaves nothing.
  mv -T "$work/$program" "$binary"
fi
echo "$binary"
