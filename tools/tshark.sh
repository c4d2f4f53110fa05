#!/bin/bash
# Captures a transfer over the software device on loopback and has Wireshark decode it: every frame must be iWARP as others understand
# it. Needs root, to capture, and tshark.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait || true; rm -rf "$dir"' EXIT
go build -o build/echo ./examples/echo

export RCONN_DEVICE=software
mkfifo "$dir/out"
build/echo -listen 127.0.0.1:0 >"$dir/out" &
pids+=($!)
exec 3<"$dir/out"
read -r line <&3 # "listening on ADDRESS"
port=${line##*:}

# Its first output is the number of the first packet: from then on it captures.
tshark -q -i lo -f "tcp port $port" -w "$dir/capture" -a duration:60 2>"$dir/log" &
pids+=($!)
tshark=$!
for _ in $(seq 100); do
	[[ -s $dir/capture ]] && break
	sleep 0.1
done
build/echo -size 8MiB "127.0.0.1:$port"
sleep 1
kill -INT "$tshark"
wait "$tshark" || true

# count FILTER prints how many packets match.
count() { tshark -r "$dir/capture" -o tcp.check_checksum:FALSE -Y "$1" 2>/dev/null | wc -l; }
fpdus=$(count iwarp_ddp_rdmap)
requests=$(count 'iwarp_mpa.req')
bad=$(count '_ws.malformed || iwarp_mpa.bad_length || iwarp_ddp_rdmap.term_etype_llp')
echo "$(count tcp) packets, $requests with an MPA request, $fpdus with DDP, $bad malformed"
((requests == 1 && fpdus > 50 && bad == 0))
