#!/bin/bash
# Installs the Debian packages that the test bed needs, or says which are missing.
set -euo pipefail
. "$(dirname "$0")/../../tools/debian.sh"

packages=(
	# the emulator, and what builds its initramfs and the siw module
	qemu-system-x86 busybox-static cpio kmod xz-utils gcc make
	# the guest's user space: it runs from this machine's root
	rdma-core ibverbs-providers libibverbs-dev librdmacm-dev iproute2 iputils-ping procps
	# peers that nobody here wrote
	rdmacm-utils perftest ibverbs-utils curl
)

say() { echo "testbed: $*" >&2; }

if [[ $(uname -sm) != "Linux x86_64" ]]; then
	say "needs Linux on x86-64, this is $(uname -sm)"
	exit 1
fi
if ! command -v apt-get dpkg-query >/dev/null; then
	say "sets itself up on Debian only (no apt-get here); it would need: ${packages[*]}"
	exit 1
fi

install_missing "${packages[@]}"
