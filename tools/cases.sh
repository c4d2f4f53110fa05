#!/bin/bash
# The classic cases of RDMA on this machine, in seconds: requests and answers by SEND, a pool read by READ, a lock made of atomics. The
# address is chosen as in run.sh. What a device lacks is said, and is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/addr.sh
. tools/title.sh

mkdir -p build
go build -o build/ ./examples/kv ./examples/params ./examples/lock

dir=$(mktemp -d)
server=
trap 'kill -INT $server 2>/dev/null || true; wait || true; rm -rf "$dir"' EXIT

# pair NAME FLAG...: server and clients in two processes; at the end what the server has said.
pair() {
	local name=$1 line
	shift
	mkfifo "$dir/$name"
	build/"$name" -listen "$addr:0" >"$dir/$name" 2>"$dir/lacks" &
	server=$!
	exec 3<"$dir/$name"
	if read -r line <&3; then # "listening on ADDRESS"
		build/"$name" -addr "${line##* }" "$@"
		kill -INT "$server"
		cat <&3
		wait "$server"
	elif ! grep 'does not support' "$dir/lacks"; then
		cat "$dir/lacks"
		exit 1
	fi
	server=
	exec 3<&-
}

title "kv: requests and answers by SEND, receives shared by all clients"
build/kv -addr "$addr:0" -demo -for 700ms

title "params: a pool of numbers, read by READ, updated by WRITE and atomics"
pair params -for 700ms

title "lock: a counter behind locks made of atomics, for 8 processes"
pair lock -for 300ms -processes

printf '\nAll parts ran to their end. examples/kv, params and lock have READMEs that explain the figures.\n'
