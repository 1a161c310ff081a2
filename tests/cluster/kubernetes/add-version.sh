#!/usr/bin/env bash
# Writes the Go module that builds the commands of one Kubernetes release: v<version>/go.mod and
# go.sum beside this script. Run it once for a new release and commit the result.
#
#   add-version.sh 1.37.2
#
# k8s.io/kubernetes requires its staging modules at v0.0.0 and replaces them by folders that are not in its module
# archive, and replacements apply in the main module only. So each of those lines is repeated here with the released
# version of the staging module.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: add-version.sh <kubernetes version, such as 1.37.2>" >&2; exit 2; }
version=${1#v}
module="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/v$version"
export GOWORK=off GOFLAGS=-mod=mod

# Outside of any module, so that the result does not depend on the current folder.
upstream=$(cd / && go mod download -json "k8s.io/kubernetes@v$version" \
  | python3 -c 'import json,sys; print(json.load(sys.stdin)["GoMod"])')

mkdir -p "$module"
{
  echo "// Builds the commands of Kubernetes $version for the tests. Written by ../add-version.sh."
  echo "module drydock/tests/cluster/kubernetes"
  echo
  grep '^go ' "$upstream"
  echo
  echo "tool ("
  printf '\tk8s.io/kubernetes/cmd/%s\n' kube-apiserver kube-controller-manager kube-scheduler kubectl
  echo ")"
  echo
  echo "require k8s.io/kubernetes v$version"
  echo
  echo "replace ("
  sed -n 's#^\t\?\(replace \)\?\([^ ]*\) => ./staging/.*#\t\2 => \2 v0.'"${version#*.}"'#p' "$upstream"
  echo ")"
} >"$module/go.mod"
rm -f "$module/go.sum"
cd "$module"
go mod tidy
