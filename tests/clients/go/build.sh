#!/usr/bin/env bash
# Builds a client-go program of this module, once per machine and version, and prints its path.
#
#   build.sh PROGRAM   informer (this folder), encodings or typed (their folders)
#   DRYDOCK_CACHE      where builds are kept (default: ${XDG_CACHE_HOME:-~/.cache}/drydock)
#
# The clients of program typed are generated from its types at each build, beside a copy of this module, so that no generated
# code is kept here.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=${1:-informer}
case $program in
  informer) package=. depth=1 ;;
  *) package=./$program depth=9 ;;
esac
cache=${DRYDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drydock}/clients
command -v go >/dev/null || { echo "clients: Go is missing; install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }

export GOWORK=off CGO_ENABLED=0

# generate MODULE: writes typed/client and the deep copies into a copy of this module.
generate() {
  local module=drydock.example.com/tests/clients/go/typed types=./typed/coordination/v1alpha3
  cd "$1"
  tool() { go tool "$1" --go-header-file /dev/null "${@:2}"; }
  tool deepcopy-gen --output-file zz_generated.deepcopy.go "$types"
  tool applyconfiguration-gen --output-dir typed/client/applyconfiguration --output-pkg "$module/client/applyconfiguration" \
    --external-applyconfigurations k8s.io/api/core/v1.NodeSelector:k8s.io/client-go/applyconfigurations/core/v1 "$types"
  tool client-gen --clientset-name versioned --input-base "" --input "$module/coordination/v1alpha3" \
    --apply-configuration-package "$module/client/applyconfiguration" --output-dir typed/client --output-pkg "$module/client"
  tool lister-gen --output-dir typed/client/listers --output-pkg "$module/client/listers" "$types"
  tool informer-gen --versioned-clientset-package "$module/client/versioned" --listers-package "$module/client/listers" \
    --output-dir typed/client/informers --output-pkg "$module/client/informers" "$types"
}

sources() { find "$here/$package" -maxdepth "$depth" -name '*.go' -print0 | sort -z | xargs -0 cat; }
key=$({ cat "$here"/{go.mod,go.sum,build.sh}; sources; go version; } | sha256sum | cut -c1-12)
binary=$cache/$program-$key
if [ ! -x "$binary" ]; then
  mkdir -p "$cache"
  echo "clients: building the client-go $program once into $binary (a minute on 2 cores)" >&2
  work=$(mktemp -d "$cache/.build-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  source=$here
  if [ "$program" = typed ]; then
    source=$work/module
    cp -r "$here" "$source"
    (generate "$source") >&2
  fi
  (cd "$source" && go build -mod=readonly -trimpath -buildvcs=false -ldflags="-s -w" -o "$work/$program" "$package")
  # Renamed when complete, so that an interrupted build leaves nothing.
  mv -T "$work/$program" "$binary"
fi
echo "$binary"
