#!/bin/bash
# Other people's servers and clients: runs the tests of compat/servers, those with installed programs and long ones too, redis-benchmark,
# pgbench and a browser through rdmaproxy, on the software device and in guests of the test bed; prints the matrix of what ran, and puts it
# into docs/compat.md when all of it has run and passed. Installs what it needs on Debian.
#
# With arguments, which go to go test, and with RDMA_ADDR and RCONN_DEVICE, which choose another device, it runs the tests on this host alone.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/debian.sh

say() { echo "compat: $*" >&2; }

# Lines of compat/servers/matrix_test.go, of everything that runs.
mkdir -p build
export MATRIX=$PWD/build/compat-matrix.tsv
rm -f "$MATRIX"
export RDMAPROXY=$PWD/build/rdmaproxy
status=0

servers() {
	install_missing redis-server redis-tools postgresql
	go build -o "$RDMAPROXY" ./cmd/rdmaproxy
	# What passes is not shown; libraries talk a lot.
	(cd compat/servers && go mod tidy -diff && go vet -tags real ./... && go test -tags real -count=1 -timeout 30m "$@" ./...) || status=$?
}

benchmarks() {
	COLUMN="software rdma" tools/proxy-real.sh || status=$?
	COLUMN="software 4KiB" FLAGS=-ring=4KiB tools/proxy-real.sh || status=$?
}

guests() {
	RUN=Compat testbed/vm test >build/compat-guests.log || status=$?
	sed -n 's/^ .*matrix\t//p' build/compat-guests.log >>"$MATRIX"
	grep -v $'^ .*matrix\t' build/compat-guests.log
}

# table prints the matrix, with those columns that have something.
table() {
	sort -f -t $'\t' -k 1,1 -s "$MATRIX" | awk -F '\t' '
		BEGIN {
			n = split("software tcp,software rdma,software 4KiB,rxe rdma,rxe 4KiB,rxe pair,siw rdma,siw 4KiB", columns, ",")
		}
		!($1 in versions) { rows[++count] = $1 }
		{
			versions[$1] = $2
			does[$1] = $3
			used[$4] = 1
			if (cell[$1, $4] != "fails") cell[$1, $4] = $5
		}
		END {
			head = "| | versions | what the test does |"
			line = "|---|---|---|"
			for (c = 1; c <= n; c++) if (columns[c] in used) {
				name = columns[c]
				if (name == "software tcp") name = "tcp"
				head = head " " name " |"
				line = line "---|"
			}
			print head "\n" line
			for (r = 1; r <= count; r++) {
				printf "| %s | %s | %s |", rows[r], versions[rows[r]], does[rows[r]]
				for (c = 1; c <= n; c++) if (columns[c] in used) {
					s = cell[rows[r], columns[c]]
					printf " %s |", s == "" ? "-" : s
				}
				print ""
			}
		}'
}

servers "$@"
whole=false
if (($# == 0)) && [[ -z ${RDMA_ADDR:-} ]]; then
	benchmarks
	tools/browser.sh || status=$?
	if testbed/vm setup; then
		whole=true
		guests
	else
		say "no guests here: docs/compat.md stays as it is"
	fi
fi
[[ -e $MATRIX ]] || exit "$status"
table >build/compat-matrix.md
cat build/compat-matrix.md
if $whole && ((status == 0)); then
	awk '
		/^<!-- end of matrix -->/ { skip = 0 }
		!skip { print }
		/^<!-- matrix/ { skip = 1; while ((getline line < "build/compat-matrix.md") > 0) print line }
	' docs/compat.md >build/compat.md
	cat build/compat.md >docs/compat.md
fi
exit "$status"
