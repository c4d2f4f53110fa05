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

# capture captures one transfer.
capture() {
	rm -f "$dir/capture"
	tshark -q -i lo -B 64 -f "tcp port $port" -w "$dir/capture" -a duration:60 2>"$dir/log" &
	pids+=($!)
	tshark=$!
	# It captures when it has captured something: connections that say nothing. On a busy machine that takes a while.
	for _ in $(seq 150); do
		(($(stat -c %s "$dir/capture" 2>/dev/null || echo 0) > 1000)) && break
		(: <>"/dev/tcp/127.0.0.1/$port") || true
		sleep 0.2
	done
	build/echo -size 4MiB "127.0.0.1:$port"
	sleep 1
	kill -INT "$tshark"
	wait "$tshark" || true
}

# count FILTER prints how many packets match. What the Sends hold is not for Wireshark to guess.
count() { tshark -r "$dir/capture" --disable-protocol rpcordma --disable-protocol smb_direct -Y "$1" 2>>"$dir/log" | wc -l; }
# Wireshark loses its place in a stream of which TCP sent something twice, as it does on loopback when the machine is busy.
for _ in 1 2 3 4 5; do
	capture
	twice=$(count 'tcp.analysis.retransmission || tcp.analysis.lost_segment')
	((twice == 0)) && break
	echo "TCP sent $twice segments twice: once more"
done
requests=$(count iwarp_mpa.req)
writes=$(count 'iwarp_rdma.opcode == 0')
sends=$(count 'iwarp_rdma.opcode == 3')
wrong='_ws.malformed || _ws.expert.severity == 0x800000 || iwarp_mpa.bad_length || iwarp_rdma.terminate'
bad=$(count "$wrong")
echo "$requests packets with an MPA request, $writes with an RDMA Write, $sends with a Send, $bad bad"
if ((bad)); then
	cp "$dir/capture" build/wire.pcap
	tshark -r "$dir/capture" --disable-protocol rpcordma --disable-protocol smb_direct -Y "$wrong" -V 2>>"$dir/log" | tail -n 60
fi
cat "$dir/log"
((requests == 1 && writes > 50 && sends > 5 && bad == 0))
