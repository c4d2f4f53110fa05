#!/bin/bash
# make run: net/http over RDMA on this machine, a server and a client in two processes, with the hash of what was served and of what
# arrived; then the classic cases of RDMA. ADDR is the address to serve, see addr.sh. SIZE is the file's, in MiB.
set -euo pipefail
cd "$(dirname "$0")/.."

. tools/addr.sh

mkdir -p build
go build -o build/http ./examples/http

dir=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; wait || true; rm -rf "$dir"' EXIT
head -c "$((${SIZE:-256} << 20))" /dev/urandom >"$dir/file"
want=$(sha256sum <"$dir/file" | cut -d ' ' -f 1)

mkfifo "$dir/out"
build/http -policy require -listen "$addr:0" -dir "$dir" >"$dir/out" &
server=$!
read -r line <"$dir/out" # "serving DIR on ADDRESS"
echo "$line"
build/http -policy require -v -o "$dir/copy" "http://${line##* }/file" | tee "$dir/log"

echo "$want served"
grep -q "^$want  $dir/copy\$" "$dir/log"
cmp "$dir/file" "$dir/copy"
echo "the copy is equal to the file"

ADDR=$addr tools/cases.sh
