#!/bin/bash
# Runs each fuzz target of the module, or those whose name matches FUZZ, for FUZZTIME (default 30s; 100000x: a number of runs). What a target finds stays in its package's testdata, as a test case.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/report.sh

targets=0
while read -r pkg; do
	list=$(go test -list '^Fuzz' "$pkg")
	for target in $(grep '^Fuzz' <<<"$list" | grep -E "${FUZZ:-.}" || true); do
		targets=$((targets + 1))
		# Making interesting inputs short can take a minute each, which is better spent on finding them.
		check "$target in $pkg" go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 20x "$pkg"
	done
done < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep .)
echo "$targets fuzz targets"
finish
