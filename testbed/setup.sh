#!/bin/bash
# Makes this machine ready to run guests: packages, kernel, initramfs. Does
# nothing when all is there. Prints the kernel's directory and the initramfs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rdma-testbed
mkdir -p "$cache"

# One at a time: two makes may start together, and apt has a lock of its own.
exec 9>"$cache/lock"
flock 9

"$here/setup/packages.sh" 9>&-
kernel=$("$here/setup/kernel.sh" "$cache" 9>&-)
initrd=$("$here/setup/initrd.sh" "$cache" "$kernel" 9>&-)
printf '%s\n' "$kernel" "$initrd"
