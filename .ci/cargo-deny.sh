#!/usr/bin/env bash
# Checks licences, sources and banned crates of all dependencies by deny.toml, and known vulnerabilities where their database is at
# hand. cargo-deny is built once per machine, from crates.io, into the cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=0.20.2
cache=${DRYDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drydock}
root=$cache/tools/cargo-deny-$version

if [ ! -x "$root/bin/cargo-deny" ]; then
  echo "lint: building cargo-deny $version into $root, once per machine; this takes some minutes" >&2
  if ! CARGO_TARGET_DIR="$cache/tools/build" cargo install --quiet --locked --root "$root" "cargo-deny@$version"; then
    echo "lint: cargo-deny $version cannot be built; it is needed from crates.io, or as $root/bin/cargo-deny" >&2
    exit 1
  fi
  rm -rf "$cache/tools/build"
fi

checks=(licenses bans sources)
# The database of advisories is a Git repository that not every network reaches.
if git ls-remote --exit-code https://github.com/rustsec/advisory-db HEAD >/dev/null 2>&1; then
  checks+=(advisories)
else
  echo "lint: the database of advisories cannot be reached: known vulnerabilities are not checked" >&2
fi
"$root/bin/cargo-deny" --locked --log-level warn check --hide-inclusion-graph "${checks[@]}"
