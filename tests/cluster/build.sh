#!/usr/bin/env bash
# Builds a Kubernetes control plane from Go modules, once per machine, and prints its folder: kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd, etcdctl, etcdutl, kwok and
# kwok's stage files (stages/).
#
#   build.sh [kubernetes version]   default: $DRYDOCK_KUBERNETES_VERSION, then 1.37.2
#   build.sh sample-apiserver       only an aggregated server in Go, for benchmarks
#   build.sh etcd                   only etcd, etcdctl and etcdutl, for tests of the storage
#   build.sh kubectl VERSION        only kubectl of a Kubernetes release
#   build.sh descheduler            only the descheduler
#   build.sh prometheus             only Prometheus and promtool
#
#   DRYDOCK_CACHE   where builds are kept (default: ${XDG_CACHE_HOME:-~/.cache}/drydock)
#
# Each family (etcd, kwok, one Kubernetes release, sample-apiserver, descheduler, Prometheus) is a Go module of its own beside this script, since
# their requirements conflict, with its own folder in the cache, so that an interrupted run keeps
# what it finished. A folder's name ends in a hash of everything that determines its contents.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DRYDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drydock}/cluster
version=${1:-${DRYDOCK_KUBERNETES_VERSION:-1.37.2}}
only=
case $version in
  sample-apiserver | etcd | descheduler | prometheus) only=$version ;;
  kubectl) only=kubectl version=${2:?the Kubernetes release} ;;
esac
version=${version#v}
sample_version=0.37.2
descheduler_version=0.36.0
prometheus_version=3.16.0
say() { printf 'cluster: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

command -v go >/dev/null || fail "Go is missing: the test cluster is built from Go modules; install Go 1.26 or newer (https://go.dev/dl)"
[ -d "$here/kubernetes/v$version" ] || [ "$only" = "$version" ] || fail "no Go module for Kubernetes $version: there are $(cd "$here/kubernetes" && echo v*/ | tr -d /); write one with tests/cluster/kubernetes/add-version.sh $version"

export GOWORK=off CGO_ENABLED=0
build_flags=(-mod=readonly -trimpath -buildvcs=false)

# key MODULE LDFLAGS: 12 digits of a hash of everything that determines the binaries.
key() {
  { cat "$1/go.mod" "$1/go.sum"; go version; go env GOOS GOARCH; printf '%s\n' "${build_flags[@]}" "$2"; } \
    | sha256sum | cut -c1-12
}

# progress NAME TOTAL LOG: logs the compiler's lines and prints every 20 s how many packages they name.
progress() {
  local started=$SECONDS said=$SECONDS count=0 line
  while true; do
    if IFS= read -r -t 20 line; then
      printf '%s\n' "$line" >>"$3"
      count=$((count + 1))
    elif [ $? -le 128 ]; then # the end of the stream; more than 128 is a time-out
      return
    fi
    if [ $((SECONDS - said)) -ge 20 ]; then
      say "$1: $count of at most $2 packages compiled, $((SECONDS - started)) s"
      said=$SECONDS
    fi
  done
}

# build FOLDER MODULE LDFLAGS ESTIMATE PACKAGE...: builds the packages' commands into FOLDER unless it exists.
build() {
  local folder=$1 module=$2 ldflags=$3 estimate=$4 started=$SECONDS
  shift 4
  local name=${folder##*/} work packages
  name=${name%-*}
  [ ! -d "$folder" ] || return 0
  work=$(mktemp -d "$cache/.build-XXXXXX")
  leftovers+=("$work")

  say "$name: fetching its Go modules"
  packages=$(cd "$module" && go list "${build_flags[@]}" -deps "$@" 2>"$work/.list.log" | wc -l) \
    || { tail -n 5 "$work/.list.log" >&2; fail "$name: a Go module could not be fetched from $(go env GOPROXY) (see above)"; }

  say "$name: building once into $folder ($estimate on 2 cores with a cold Go cache)"
  (cd "$module" && go build "${build_flags[@]}" -v -ldflags="-s -w $ldflags" -o "$work/" "$@") 2>&1 \
    | progress "$name" "$packages" "$work/.build.log" \
    || { tail -n 20 "$work/.build.log" >&2; fail "$name: go build failed (see above)"; }

  case $name in
    etcd-*) mv "$work/server" "$work/etcd" ;;
    kwok-*) copy_stages "$module" "$work/stages" ;;
  esac
  rm -f "$work"/.*.log
  chmod -R u+w,a+rX "$work"
  # Renamed when complete, so that an interrupted build leaves no folder.
  mv -T "$work" "$folder"
  say "$name: built in $((SECONDS - started)) s"
}

# copy_stages MODULE TARGET: the life cycle of kwok's nodes and pods; without stages kwok exits.
copy_stages() {
  local stage source
  source=$(cd "$1" && go list -mod=readonly -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
  mkdir "$2"
  for stage in node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease \
    pod/fast/pod-ready pod/fast/pod-complete pod/fast/pod-delete; do
    cp "$source/$stage.yaml" "$2/"
  done
}

leftovers=()
trap 'rm -rf "${leftovers[@]}"' EXIT

# lock: one build at a time; the next one finds the folder.
lock() {
  mkdir -p "$cache"
  exec 9>"$cache/.lock"
  flock -n 9 || { say "waiting for another build to end"; flock 9; }
}

# only FOLDER MODULE LDFLAGS ESTIMATE PACKAGE...: builds one family unless it is there, prints its folder and ends.
only() {
  if [ ! -d "$1" ]; then
    lock
    build "$@"
  fi
  echo "$1"
  exit 0
}

if [ "$only" = sample-apiserver ]; then
  only "$cache/sample-apiserver-$sample_version-$(key "$here/sample-apiserver" "")" \
    "$here/sample-apiserver" "" "2 minutes" k8s.io/sample-apiserver
fi

if [ "$only" = descheduler ]; then
  only "$cache/descheduler-$descheduler_version-$(key "$here/descheduler" "")" \
    "$here/descheduler" "" "3 minutes" sigs.k8s.io/descheduler/cmd/descheduler
fi

if [ "$only" = prometheus ]; then
  # Without the clients of cloud providers, which find targets.
  build_flags+=(-tags=remove_all_sd)
  only "$cache/prometheus-$prometheus_version-$(key "$here/prometheus" "")" "$here/prometheus" "" "3 minutes" \
    github.com/prometheus/prometheus/cmd/prometheus github.com/prometheus/prometheus/cmd/promtool
fi

etcd="$cache/etcd-3.7.3-$(key "$here/etcd" "")"
build_etcd() {
  build "$etcd" "$here/etcd" "" "half a minute" go.etcd.io/etcd/server/v3 go.etcd.io/etcd/etcdctl/v3 \
    go.etcd.io/etcd/etcdutl/v3
}

if [ "$only" = etcd ]; then
  if [ ! -d "$etcd" ]; then
    lock
    build_etcd
  fi
  echo "$etcd"
  exit 0
fi

minor=${version#*.}
component=k8s.io/component-base/version
# Without these the version is v0.0.0-master, which confuses clients that check it.
kubernetes_ldflags="-X $component.gitVersion=v$version -X $component.gitMajor=${version%%.*}"
kubernetes_ldflags+=" -X $component.gitMinor=${minor%%.*} -X $component.gitTreeState=clean"

if [ "$only" = kubectl ]; then
  only "$cache/kubectl-$version-$(key "$here/kubernetes/v$version" "$kubernetes_ldflags")" \
    "$here/kubernetes/v$version" "$kubernetes_ldflags" "3 minutes" k8s.io/kubernetes/cmd/kubectl
fi

kubernetes="$cache/kubernetes-$version-$(key "$here/kubernetes/v$version" "$kubernetes_ldflags")"
kwok="$cache/kwok-0.8.0-$(key "$here/kwok" "")"
cluster="$cache/v$version-$(printf '%s\n' "$kubernetes" "$etcd" "$kwok" | sha256sum | cut -c1-12)"

if [ -d "$cluster" ]; then
  echo "$cluster"
  exit 0
fi

lock
if [ ! -d "$cluster" ]; then
  build_etcd
  build "$kwok" "$here/kwok" "" "a minute" sigs.k8s.io/kwok/cmd/kwok
  build "$kubernetes" "$here/kubernetes/v$version" "$kubernetes_ldflags" "7 minutes" \
    k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager \
    k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kubectl
  work=$(mktemp -d "$cache/.build-XXXXXX")
  leftovers+=("$work")
  # Hard links: independent of the families' folders, without copies.
  cp -al "$etcd/." "$kwok/." "$kubernetes/." "$work/"
  chmod a+rx "$work"
  mv -T "$work" "$cluster"
fi
echo "$cluster"
