#!/bin/bash
# Runs the tests of connections and of what they stand on ROUNDS times, 20 if not set, each time on 1, 2 and 4 processors
# and in another order.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/report.sh

flags=(-count=1 -cpu "1,2,4" -shuffle=on -timeout 30m)
if with_cgo "race detector"; then
	flags+=(-race)
fi
for ((round = 1; round <= ${ROUNDS:-20}; round++)); do
	check "round $round" go test "${flags[@]}" ./rconn ./ring ./cm ./verbs/...
done
finish
