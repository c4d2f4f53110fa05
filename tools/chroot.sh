#!/bin/bash
# Runs a command in a clean Debian that has gcc and libc6-dev and nothing of RDMA:
#
#	tools/chroot.sh COMMAND...
#
# It sees this checkout at /src, Go at /go and the module cache at /modules, all read-only, and has no network but loopback. /tmp is
# fresh. The chroot is made once, in a cache outside the checkout. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/rdma-checks
release=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")
root=$cache/$release-gcc-1 # count up when the list of packages changes

make_root() {
	rm -rf "$root.new"
	debootstrap --variant=minbase --include=gcc,libc6-dev "$release" "$root.new" >"$cache/debootstrap.log" 2>&1 || {
		tail -n 20 "$cache/debootstrap.log"
		return 1
	}
	rm -rf "$root.new"/var/cache/apt/* "$root.new"/var/lib/apt/lists/*
	mkdir -p "$root.new"/{src,go,modules,gocache}
	mv "$root.new" "$root"
}

# inside runs in its own mount and network namespace, so that nothing stays mounted whatever happens.
inside() {
	mount --make-rprivate /
	ip link set lo up
	mount -t proc proc "$root/proc"
	mount -t tmpfs tmpfs "$root/tmp"
	local from to
	while read -r from to; do
		mount --bind "$from" "$root/$to"
		mount -o remount,bind,ro "$root/$to"
	done <<-LIST
		$PWD src
		$GOROOT go
		$MODULES modules
	LIST
	exec chroot "$root" /usr/bin/env -i HOME=/tmp PATH=/go/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		GOCACHE=/gocache GOMODCACHE=/modules GOPROXY=off GOTOOLCHAIN=local GOFLAGS=-buildvcs=false \
		/bin/sh -c 'cd /src && exec "$@"' sh "$@"
}

if [[ ${1:-} == --inside ]]; then
	shift
	inside "$@"
fi

GOROOT=$(go env GOROOT)
MODULES=$(go env GOMODCACHE)
export GOROOT MODULES
mkdir -p "$cache" "$MODULES"
(
	flock 9
	[[ -d $root ]] || make_root 9>&-
) 9>"$cache/lock"
exec unshare --mount --net tools/chroot.sh --inside "$@"
