#!/usr/bin/env bash
# Installs the Debian packages for building and testing that are missing.
set -euo pipefail

missing=()
for package in libclang-dev cmake ninja-build g++ make protobuf-compiler libprotobuf-dev python3; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
command -v cargo >/dev/null || { echo "tools: cargo is missing: install Rust 1.95 with rustup" >&2; exit 1; }
[ "${#missing[@]}" -gt 0 ] || exit 0

echo "tools: installing ${missing[*]}" >&2
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
