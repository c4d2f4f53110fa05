#!/bin/bash
# make run: net/http over RDMA on this machine, a server and a client in two processes, with the hash of what was served and of what
# arrived; then the classic cases of RDMA. ADDR is the address to serve, see addr.sh. SIZE is the file's, in MiB.
set -euo pipefail
cd "$(dirname "$0")/.."

. tools/addr.sh
. tools/title.sh

mkdir -p build
go build -o build/http ./examples/http

size=${SIZE:-256}
dir=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; wait || true; rm -rf "$dir"' EXIT
head -c "$((size << 20))" /dev/urandom >"$dir/file"

title "net/http over RDMA: a file of $size MiB, from a server to a client in another process"
mkfifo "$dir/out"
build/http -policy require -listen "$addr:0" -dir "$dir" >"$dir/out" 2>"$dir/log" &
server=$!
if ! read -r line <"$dir/out"; then # "serving DIR on ADDRESS"
	cat "$dir/log" >&2
	exit 1
fi
echo "$line"
build/http -policy require -stats -o "$dir/copy" "http://${line##* }/file"

want=$(sha256sum <"$dir/file" | cut -d ' ' -f 1)
got=$(sha256sum <"$dir/copy" | cut -d ' ' -f 1)
if [[ $want != "$got" ]] || ! cmp "$dir/file" "$dir/copy"; then
	echo "DIFFERENT: the hash of the file is $want, that of the copy $got" >&2
	exit 1
fi
echo "$want  $dir/file"
echo "the copy is equal to the file"

ADDR=$addr tools/cases.sh
