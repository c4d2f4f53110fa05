#!/bin/bash
# Runs in the guest: serves a generated file on rconn and fetches it twice, with the Go client and with curl, which knows
# nothing of us: librspreload turns its sockets into rsockets.
set -euo pipefail
size=$((16 << 20))
port=8080
dir=$(mktemp -d)
head -c "$size" /dev/urandom >"$dir/file"
want=$(sha256sum <"$dir/file")

build/http -policy require -listen "$RDMA_ADDR:$port" -dir "$dir" &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server || true' EXIT

preload=$(echo /usr/lib/*/rsocket/librspreload.so)
url=http://$RDMA_ADDR:$port/file
sleep 0.5

echo "file:   $want"
echo "rdma link: $(rdma link show | head -n 1)"
echo "--- Go client"
build/http -policy require -v -o "$dir/go" "$url"
echo "--- curl under librspreload"
start=$(date +%s%N)
LD_PRELOAD=$preload curl --silent --show-error --fail --max-time 60 -o "$dir/curl" "$url"
took=$((($(date +%s%N) - start) / 1000000))
sha256sum <"$dir/curl"
echo "$size bytes in ${took}ms, $((size * 1000 / took / 1048576)) MiB/s"

for copy in go curl; do
	cmp "$dir/file" "$dir/$copy"
done
echo "both copies are equal to the file (the machine is emulated: its rates say nothing about hardware)"
