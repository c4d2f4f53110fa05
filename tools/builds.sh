#!/bin/bash
# Builds the library as its users will, and starts it where something is missing: no cgo, other systems, no RDMA headers,
# no RDMA libraries.
# shellcheck disable=SC2317 # the functions are called by check
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/report.sh
# Within check a failing command does not end a function: each says itself what its status is.

program=./internal/checks/devices # prints the system's devices, or why there are none
built=build/devices
loopback=./internal/checks/loopback # sends something over the software device

# says COMMAND... -- WORD... runs a command that must print all words.
says() {
	local command=() out word
	while [[ $1 != -- ]]; do
		command+=("$1")
		shift
	done
	shift
	out=$("${command[@]}" 2>&1) || { echo "$out" && return 1; }
	for word in "$@"; do
		if [[ $out != *"$word"* ]]; then
			printf '%s\ndoes not contain: %s\n' "$out" "$word"
			return 1
		fi
	done
}

# not_linked PROGRAM checks that the RDMA libraries are looked up at run time only.
not_linked() {
	local needed
	needed=$(readelf -d "$1" | grep NEEDED)
	echo "$needed"
	[[ $needed == *libc.so* && $needed != *ibverbs* && $needed != *rdmacm* ]]
}

check "build, no cgo" env CGO_ENABLED=0 go build ./...
check "build, darwin" env CGO_ENABLED=0 GOOS=darwin go build ./...
check "build, windows" env CGO_ENABLED=0 GOOS=windows go build ./...
check "program without cgo builds" env CGO_ENABLED=0 go build -o "$built-nocgo" "$program"
check "program without cgo says so" says "$built-nocgo" -- "cgo"
check "no cgo: the software device works" says env CGO_ENABLED=0 go run "$loopback" -- software0

if [[ $(uname -s) != Linux ]]; then
	not_asked "builds with cgo" "not Linux"
	finish
elif ! with_cgo "builds with cgo"; then
	finish
fi

check "build" go build ./...
check "program with cgo builds" go build -o "$built" "$program"
check "program is not linked to the RDMA libraries" not_linked "$built"
check "tests of rdmacore with GOEXPERIMENT=cgocheck2" \
	env GOEXPERIMENT=cgocheck2 go test -count=1 ./internal/rdmacore

if ((EUID != 0)); then
	left_out "clean chroot" "needs root"
elif ! command -v debootstrap >/dev/null; then
	left_out "clean chroot" "no debootstrap"
else
	check "clean chroot" tools/chroot.sh true
	check "no RDMA libraries: the program starts and names them" \
		says tools/chroot.sh "/src/$built" -- libibverbs1 librdmacm1
	check "the software device, with cgo, builds" go build -o build/loopback "$loopback"
	check "no RDMA libraries: the software device works" says tools/chroot.sh /src/build/loopback -- software0
	check "gcc without RDMA headers: build" tools/chroot.sh go build ./...
	check "gcc without RDMA headers: the program names the packages" \
		says tools/chroot.sh go run "$program" -- libibverbs-dev librdmacm-dev
fi
finish
