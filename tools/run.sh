#!/bin/bash
# make run: net/http over RDMA on this machine, a server and a client in two processes, with the hash of what was served and of what
# arrived. ADDR is the address to serve; without one it is that of an RDMA device, and where there is none loopback, which the
# software device serves. SIZE is the file's, in MiB.
set -euo pipefail
cd "$(dirname "$0")/.."

# rdma_addr prints an address of an RDMA device, if there is one.
rdma_addr() {
	local ndev
	for ndev in /sys/class/infiniband/*/ports/1/gid_attrs/ndevs/0; do
		[[ -r $ndev ]] || continue
		ip -4 -o address show dev "$(cat "$ndev" 2>/dev/null)" 2>/dev/null || true # without ip: loopback
	done | awk 'NR == 1 { sub("/.*", "", $4); print $4 }'
}
addr=${ADDR:-$(rdma_addr)}
addr=${addr:-127.0.0.1}

mkdir -p build
go build -o build/http ./examples/http

dir=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; wait || true; rm -rf "$dir"' EXIT
head -c "$((${SIZE:-256} << 20))" /dev/urandom >"$dir/file"
want=$(sha256sum <"$dir/file" | cut -d ' ' -f 1)

mkfifo "$dir/out"
build/http -listen "$addr:0" -dir "$dir" >"$dir/out" &
server=$!
read -r line <"$dir/out" # "serving DIR on ADDRESS"
echo "$line"
build/http -o "$dir/copy" "http://${line##* }/file" | tee "$dir/log"

echo "$want served"
grep -q "^$want$" "$dir/log"
cmp "$dir/file" "$dir/copy"
echo "the copy is equal to the file"
