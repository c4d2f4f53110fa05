#!/bin/bash
# Runs the Go tests of the library and of nested modules. Arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/report.sh

flags=(-count=1 -shuffle=on)
if with_cgo "race detector"; then
	flags+=(-race)
fi

# The tests of net.Conn's contract run apart, again and again.
run() { go test "${flags[@]}" -skip '^TestNettest(Software)?$' "$@" ./... || failed=$((failed + 1)); }

run "$@"
check "net.Conn's contract, 2 times on 1, 2 and 4 processors" \
	go test "${flags[@]}" -count=2 -cpu 1,2,4 -run '^TestNettest(Software)?$' ./rconn
if [[ " ${flags[*]} " == *" -race "* ]]; then
	# The race detector makes the exploration of all states ten times slower, and there is nothing for it to find. Of tests that do
	# something very often, or with very much, it sees a part.
	check "all states of a small connection" go test -count=1 -run Explore ./ring
	check "a million reads and writes, a thousand times 1 MiB and Close, ten thousand connections, 2 GiB in one Write" \
		go test -count=1 -run 'RandomSizes|WriteAndClose|SimultaneousClose|HugeWrite' ./rconn
fi
check "benchmarks of the hot paths, which fail if they allocate" \
	go test -count=1 -run '^$' -bench . -benchtime 100x ./internal/softiwarp ./rconn
# compat/servers needs minutes to download and build: make compat checks it.
for mod in $(git ls-files -co --exclude-standard -- '*/go.mod' ':!compat/servers/*'); do
	dir=${mod%/go.mod}
	if [[ -n $(find "$dir" -name '*_test.go' -print -quit) ]]; then
		cd "$dir"
		run "$@"
		cd "$OLDPWD"
	fi
done
finish
