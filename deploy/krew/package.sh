#!/usr/bin/env bash
# Packs the plugin for krew: an archive of bin/kubectl-drydock, and the manifest with its checksum.
#
#   deploy/krew/package.sh FOLDER URL
#
# writes FOLDER/kubectl-drydock-VERSION-OS-ARCH.tar.gz and FOLDER/drydock.yaml. URL is where the archive will be
# published. To try it: kubectl krew install --manifest FOLDER/drydock.yaml --archive FOLDER/….tar.gz
set -euo pipefail

[ $# -eq 2 ] || { echo "usage: package.sh FOLDER URL" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${DRYDOCK_BIN_DIR:-$root/bin}
folder=$1
url=$2
version=$("$bin/kubectl-drydock" --version | cut -d ' ' -f 2)
os=$(uname -s | tr '[:upper:]' '[:lower:]')
case $(uname -m) in
  x86_64) arch=amd64 ;;
  aarch64 | arm64) arch=arm64 ;;
  *) echo "package.sh: krew has no name for $(uname -m)" >&2; exit 1 ;;
esac

mkdir -p "$folder"
archive=$folder/kubectl-drydock-$version-$os-$arch.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$bin/kubectl-drydock" "$root/cli/kubectl_complete-drydock" "$root/LICENSE" "$work"
tar --create --gzip --file "$archive" --directory "$work" --owner=0 --group=0 --sort=name --mtime=@0 \
  LICENSE kubectl-drydock kubectl_complete-drydock
sum=$(sha256sum "$archive" | cut -d ' ' -f 1)

cat >"$folder/drydock.yaml" <<YAML
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: drydock
spec:
  version: v$version
  shortDescription: Drain nodes cooperatively, and explain what holds a pod
  description: |
    Starts and ends node maintenances, shows their progress, and explains for each pod that is left whose turn it is,
    what blocks it, and what you can do. Checks nodes before a drain. Requires Drydock in the cluster.
  caveats: |
    For shell completion, put kubectl_complete-drydock, which the archive contains, on your PATH.
  platforms:
    - selector:
        matchLabels:
          os: $os
          arch: $arch
      uri: $url
      sha256: $sum
      bin: kubectl-drydock
      files:
        - { from: LICENSE, to: . }
        - { from: kubectl-drydock, to: . }
        - { from: kubectl_complete-drydock, to: . }
YAML
echo "$folder/drydock.yaml"
