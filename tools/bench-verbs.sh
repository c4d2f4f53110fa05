#!/bin/bash
# make bench-verbs: the operations of RDMA side by side, on the software device here and in a guest, and on the guest's Soft-RoCE. DOC is a
# document to write the tables into, docs/verbs.md for instance; ARGS are more arguments of bench/verbs; HERE=1 leaves the guest out.
set -euo pipefail
cd "$(dirname "$0")/.."

args=("-rounds" "7")
read -ra more <<<"${ARGS:-}"
args+=("${more[@]}")
mkdir -p build
go build -o build/verbs ./bench/verbs

# command_for FOLDER SECTION ARGUMENT... prints a command that measures, as a shell reads it. DOC is in that folder.
command_for() {
	local folder=$1 section=$2
	shift 2
	local line=(build/verbs "${args[@]}" "$@")
	if [[ ${DOC:-} ]]; then
		line+=(-doc "$folder/${DOC##*/}" -section "$section")
	fi
	printf '%q ' "${line[@]}"
}

here=
if [[ ${DOC:-} ]]; then
	[[ -w $DOC ]] || { echo "DOC=$DOC: there is no such file to write to" >&2 && exit 1; }
	here=$(cd "$(dirname "$DOC")" && pwd)
fi
bash -c "$(command_for "$here" software0)"
if [[ ${HERE:-} ]]; then
	exit 0
fi
echo
OUT=$here TIMEOUT=${TIMEOUT:-900} DEV=rxe testbed/vm run \
	"$(command_for /out rxe0 -addr 10.9.0.1) && echo && $(command_for /out software0-guest)"
