#!/bin/bash
# Installs what make test needs on Debian, or says what is missing. With CGO_ENABLED=0 nothing but Go, git and make is
# needed, and nothing is installed.
set -euo pipefail
. "$(dirname "$0")/debian.sh"

say() { echo "setup: $*" >&2; }

if ! command -v go >/dev/null; then
	say "no go in PATH; see https://go.dev/doc/install (version: go.mod)"
	exit 1
fi
if [[ ${CGO_ENABLED:-} == 0 ]]; then
	say "CGO_ENABLED=0: the race detector, cgo and the clean chroot are left out"
	exit 0
fi
if [[ $(uname -s) != Linux ]]; then
	say "not Linux: what concerns the RDMA devices of the system is left out"
	exit 0
fi

packages=(
	gcc libc6-dev libibverbs-dev librdmacm-dev # internal/rdmacore, and the race detector
	binutils debootstrap                       # builds in a clean chroot
	iproute2 shellcheck tshark
)

if ! command -v apt-get dpkg-query >/dev/null; then
	commands=()
	for c in gcc readelf debootstrap ip shellcheck tshark; do
		command -v "$c" >/dev/null || commands+=("$c")
	done
	((${#commands[@]})) || exit 0
	say "sets itself up on Debian only, and here is no ${commands[*]} (Debian's packages: ${packages[*]});" \
		"CGO_ENABLED=0 make test needs none of these"
	exit 1
fi

if ! install_missing "${packages[@]}"; then
	say "CGO_ENABLED=0 make test needs none of these"
	exit 1
fi
