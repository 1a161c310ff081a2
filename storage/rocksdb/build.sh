#!/usr/bin/env bash
# Builds the RocksDB that the crate `librocksdb-sys` ships, once per machine, as a unity build, and
# prints the folder that holds librocksdb.a: the value of ROCKSDB_LIB_DIR.
#
# The crate's own build script compiles the same sources one file at a time and takes more than twice
# as long; it stays the fallback: unset ROCKSDB_LIB_DIR and call cargo.
#
#   DRYDOCK_CACHE   where builds are kept (default: ${XDG_CACHE_HOME:-~/.cache}/drydock)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${DRYDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drydock}
say() { printf 'rocksdb: %s\n' "$*" >&2; }

manifest=$(cd "$root" && cargo metadata --format-version 1 --locked 2>/dev/null \
  | python3 -c 'import json,sys
for p in json.load(sys.stdin)["packages"]:
    if p["name"]=="librocksdb-sys": print(p["manifest_path"], p["version"])')
[ -n "$manifest" ] || { say "cargo metadata names no librocksdb-sys: run 'cargo fetch' and look at its message"; exit 1; }
source_dir=$(dirname "${manifest% *}")/rocksdb
version=${manifest##* }

# Compression is off: payloads are already compressed.
# PORTABLE=1: the archive runs on any x86-64 or arm64 machine, not only on the one that built it.
options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=24
  -DWITH_TESTS=OFF -DWITH_TOOLS=OFF -DWITH_CORE_TOOLS=OFF -DWITH_BENCHMARK_TOOLS=OFF
  -DWITH_TRACE_TOOLS=OFF -DWITH_GFLAGS=OFF -DROCKSDB_BUILD_SHARED=OFF -DUSE_RTTI=ON -DPORTABLE=1
  -DWITH_LIBURING=OFF -DFAIL_ON_WARNINGS=OFF)
key=$(printf '%s\n' "$version" "${options[@]}" "$(c++ -dumpfullversion -dumpmachine)" | sha256sum | cut -c1-12)
target="$cache/rocksdb/$version-$key"

if [ -f "$target/librocksdb.a" ]; then
  echo "$target"
  exit 0
fi
for tool in cmake ninja c++; do
  command -v "$tool" >/dev/null || { say "$tool is missing: run 'make tools'"; exit 1; }
done

mkdir -p "$cache/rocksdb"
exec 9>"$cache/rocksdb/.lock"
flock 9
if [ ! -f "$target/librocksdb.a" ]; then
  say "building $version once into $target (about 5 minutes on 2 cores)"
  work=$(mktemp -d "$cache/rocksdb/.build-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  cmake -G Ninja -S "$source_dir" -B "$work" "${options[@]}" >"$work/configure.log" 2>&1 \
    || { tail -n 20 "$work/configure.log" >&2; say "cmake failed"; exit 1; }
  start=$SECONDS
  NINJA_STATUS='rocksdb: [%f/%t, %e s] ' ninja -C "$work" rocksdb 9>&- \
    | tee "$work/build.log" | grep --line-buffered -E '^rocksdb: \[|FAILED|error:' >&2 \
    || true
  [ -f "$work/librocksdb.a" ] || { tail -n 30 "$work/build.log" >&2; say "the build failed"; exit 1; }
  strip --strip-debug "$work/librocksdb.a"
  mkdir -p "$target"
  # The rename is what makes the archive visible: a build that was interrupted leaves none.
  mv "$work/librocksdb.a" "$target/.librocksdb.a" && mv "$target/.librocksdb.a" "$target/librocksdb.a"
  say "built in $((SECONDS - start)) s"
fi
echo "$target"
