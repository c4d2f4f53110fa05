#!/bin/bash
# Runs the tests of compat/servers, those with installed programs and long ones too, prints their matrix and puts it into docs/compat.md.
# Installs what it needs on Debian. RDMA_ADDR and RCONN_DEVICE choose another device than the software device on loopback; then docs/compat.md
# stays as it is. Arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/debian.sh

say() { echo "compat: $*" >&2; }

install_missing redis-server postgresql

mkdir -p build
matrix=$PWD/build/compat-matrix.md
go build -o build/rdmaproxy ./cmd/rdmaproxy
export RDMAPROXY=$PWD/build/rdmaproxy
rm -f "$matrix"
status=0
# What passes is not shown; libraries talk a lot.
(cd compat/servers && go mod tidy -diff && go vet -tags real ./... && go test -tags real -count=1 -timeout 30m "$@" ./... -args -matrix="$matrix") || status=$?
if (($# == 0)); then
	tools/proxy-real.sh || status=$?
	tools/browser.sh || status=$?
fi
[[ -e $matrix ]] || exit "$status"
cat "$matrix"
if [[ -z ${RDMA_ADDR:-} ]] && ((status == 0 && $# == 0)); then
	awk -v matrix="$matrix" '
		/^<!-- end of matrix -->/ { skip = 0 }
		!skip { print }
		/^<!-- matrix/ { skip = 1; while ((getline line < matrix) > 0) print line }
	' docs/compat.md >build/compat.md
	cat build/compat.md >docs/compat.md
fi
exit "$status"
