#!/bin/bash
# make bench and make vm-bench: streams side by side, see docs/performance.md.
#
#	bench.sh host     the software device beside TCP, here
#	bench.sh guest    Soft-RoCE beside rstream and perftest too, in a guest
#
# ONLY is a regexp for the names of work, ROUNDS how often each measurement is made, DOC a document to write the tables into,
# docs/performance.md for instance; ARGS are more arguments of bench/stream. Results are kept in build/bench: work that ONLY leaves out
# is shown as it was measured last, if KEEP is set.
set -euo pipefail
cd "$(dirname "$0")/.."

where=${1:-}
[[ $where == host || $where == guest ]] || { echo "usage: bench.sh host|guest" >&2 && exit 2; }
read -ra more <<<"${ARGS:-}"
out=build/bench
mkdir -p "$out"
go build -o "$out/stream" ./bench/stream

# command_for FOLDER ARGUMENT... prints the command that measures, as a shell reads it. Results go to that folder.
command_for() {
	local line=("$out/stream" -html "$1/$where.html" "${@:2}")
	[[ -z ${ONLY:-} ]] || line+=(-only "$ONLY")
	[[ -z ${ROUNDS:-} ]] || line+=(-rounds "$ROUNDS")
	[[ -z ${KEEP:-} ]] || line+=(-json "$1/$where.json")
	[[ -z ${DOC:-} ]] || line+=(-doc "$1/doc.md" -section "$where")
	printf '%q ' "${line[@]}" "${more[@]}"
}

if [[ ${DOC:-} ]]; then
	[[ -w $DOC ]] || { echo "DOC=$DOC: there is no such file to write to" >&2 && exit 1; }
	cp "$DOC" "$out/doc.md"
fi
if [[ $where == host ]]; then
	bash -c "$(command_for "$out")"
else
	for source in testbed/peers/*.c; do
		name=${source##*/}
		gcc -O1 -o "$out/${name%.c}" "$source" -lrdmacm
	done
	HOST_LOAD=$(cut -d ' ' -f 1 /proc/loadavg)
	# With idle=poll the guest's processors do not halt: waking those costs more than RDMA does, and most of the noise comes from it. And the
	# time comes from the processor's counter as on any real machine, not from an emulated timer chip at several µs a look.
	# The memory is for thousands of connections at once.
	OUT=$PWD/$out TIMEOUT=${TIMEOUT:-3000} MEMORY=${MEMORY:-6144} DEV=rxe KARGS=${KARGS-idle=poll tsc=reliable clocksource=tsc} testbed/vm run \
		"HOST_LOAD=$HOST_LOAD $(command_for /out -addr 10.9.0.1 -peers "$out")"
fi
if [[ ${DOC:-} ]]; then
	cp "$out/doc.md" "$DOC"
fi
[[ ! -e $out/$where.html ]] || echo "plots: $out/$where.html"
