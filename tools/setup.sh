#!/usr/bin/env bash
# Make this machine ready: Debian packages, the virtual environment, and for tests the real control plane.
#
#   tools/setup.sh run      what `make run` needs
#   tools/setup.sh check    what `make check` needs: the virtual environment alone, no root
#   tools/setup.sh test     all of it, and what `make test` needs
#   tools/setup.sh hosts    all of it, and what `make hosts` needs: kubeadm and its cluster's programs
#
# Safe to repeat; when nothing is missing it takes well under a second. Installs packages only as root: for others it
# says which are missing and ends with status 1. Services that come with the packages are not started.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
# PATH of `su` and of cron lacks the folders where Debian keeps runc, iptables and etcd's friends.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

purpose=${1:-}
case $purpose in run | check | test | hosts) ;; *) die "usage: tools/setup.sh run|check|test|hosts" ;; esac

exec 8<"$root"
flock -n 8 || { say "another set-up is running here, waiting for it"; flock 8; }

has() { command -v "$1" >/dev/null 2>&1; }

has_cni() {
  local folder
  for folder in /usr/lib/cni /opt/cni/bin /usr/libexec/cni; do
    if [ -x "$folder/bridge" ] && [ -x "$folder/host-local" ] && [ -x "$folder/portmap" ]; then return 0; fi
  done
  return 1
}

# True when busybox is there and needs no shared libraries (an image holds nothing else).
has_static_busybox() { has busybox && ! ldd "$(command -v busybox)" >/dev/null 2>&1; }

# True when $1 is a Python that can make our virtual environment.
good_python() {
  has "$1" && "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local name
  for name in ${PYTHON:-} python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
    if good_python "$name"; then echo "$name"; return 0; fi
  done
  return 1
}

missing_packages() {
  [ -x "$venv/bin/python" ] || find_python >/dev/null || echo python3 python3-venv
  if [ "$purpose" = check ]; then return 0; fi
  has containerd && has ctr || echo containerd
  has runc || echo runc
  has_cni || echo containernetworking-plugins
  has_static_busybox || echo busybox-static
  has iptables || echo iptables
  if [ "$purpose" = test ] || [ "$purpose" = hosts ]; then
    # Guests, and what builds their disk.
    has qemu-system-x86_64 || echo qemu-system-x86 seabios ipxe-qemu
    has qemu-img || echo qemu-utils
    has mmdebstrap || echo mmdebstrap
    has ssh && has ssh-keygen || echo openssh-client
    has mke2fs || echo e2fsprogs
    has etcd || echo etcd-server
    has docker-registry || echo docker-registry
    has dbus-daemon || echo dbus-daemon
    has mkfs.xfs || echo xfsprogs
    has conmon || echo conmon
    # runc is partly written in C.
    has gcc || echo gcc libc6-dev
    has pkg-config || echo pkg-config
    [ -e /usr/include/seccomp.h ] || echo libseccomp-dev
    # Programs of the machine that go into the images of Kubernetes' own tests.
    has curl || echo curl
    has ip || echo iproute2
    has nc.openbsd || echo netcat-openbsd
  fi
}

install_packages() {
  local packages=$* policy=/usr/sbin/policy-rc.d
  has apt-get || die "missing: $packages (Debian's names). There is no apt-get here: install them by hand and try again"
  if [ "$(id -u)" != 0 ]; then
    die "missing Debian packages, and only root may install them. Run: sudo apt-get install --no-install-recommends $packages"
  fi
  say "installing Debian packages: $packages"
  # Debian starts the services of new packages (etcd, a registry, containerd); nobody asked for that.
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || die "apt-get update failed, see above"
  # shellcheck disable=SC2086
  apt-get install -y -qq --no-install-recommends $packages >/dev/null || die "apt-get could not install: $packages"
}

packages=$(missing_packages | tr '\n' ' ')
if [ -n "${packages// /}" ]; then
  # shellcheck disable=SC2086
  install_packages $packages
  packages=$(missing_packages | tr '\n' ' ')
  [ -z "${packages// /}" ] || die "still missing after the installation: $packages"
fi

requirements=("$root/requirements.txt")
stamp=$venv/.setup-run
if [ "$purpose" != run ]; then
  requirements+=("$root/requirements-dev.txt" "$root/requirements-tracing.txt")
  stamp=$venv/.setup-dev
fi
key=$(cat "${requirements[@]}" "$root/pyproject.toml" | sha256sum | cut -c1-16)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$key" ] || ! "$venv/bin/python" -c '' 2>/dev/null; then
  if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    python=$(find_python) || die "no Python 3.11 or newer that can make virtual environments"
    say "making the virtual environment .venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
  fi
  say "installing Python packages from ${requirements[*]##*/}"
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
  "${pip[@]}" "${requirements[@]/#/--requirement=}" || die "pip could not install the packages, see above"
  "${pip[@]}" --no-deps --editable "$root" || die "pip could not install pykubelet itself, see above"
  echo "$key" >"$stamp"
fi
# Where Python must not write its own cache (PYTHONDONTWRITEBYTECODE) each start of the agent would compile all modules
# anew: half a second of a core.
"$venv/bin/python" -m compileall -q "$root/src/pykubelet" || die "the sources cannot be compiled, see above"

if [ "$purpose" = test ] || [ "$purpose" = hosts ]; then
  for target in controlplane containerd2 crio runc metricsserver e2e plugins otelcol kubeadm; do
    "$root/tools/build-go.sh" "$target" >/dev/null || die "tests need $target, which could not be built"
  done
fi
say "ready to $purpose after $SECONDS s"
