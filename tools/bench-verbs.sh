#!/bin/bash
# make bench-verbs: the operations of RDMA side by side, on the software device here and in a guest, and on the guest's Soft-RoCE. DOC is a
# document to write the tables into, docs/verbs.md for instance; ARGS are more arguments of bench/verbs; HERE=1 leaves the guest out.
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra more <<<"${ARGS:-}"
folder=
if [[ ${DOC:-} ]]; then
	[[ -w $DOC ]] || { echo "DOC=$DOC: there is no such file to write to" >&2 && exit 1; }
	folder=$(cd "$(dirname "$DOC")" && pwd)
fi
mkdir -p build
go build -o build/verbs ./bench/verbs

# command_for FOLDER SECTION ARGUMENT... prints a command that measures, as a shell reads it. DOC is in that folder.
command_for() {
	local line=(build/verbs "${@:3}" "${more[@]}")
	if [[ ${DOC:-} ]]; then
		line+=(-doc "$1/${DOC##*/}" -section "$2")
	fi
	printf '%q ' "${line[@]}"
}

bash -c "$(command_for "$folder" software0)"
if [[ ${HERE:-} ]]; then
	exit 0
fi
# In a guest everything is slower, and a measurement takes longer.
echo
OUT=$folder TIMEOUT=${TIMEOUT:-1200} DEV=rxe testbed/vm run \
	"$(command_for /out rxe0 -time 400ms -addr 10.9.0.1) && echo && $(command_for /out software0-guest -time 400ms)"
