#!/bin/bash
# make vm-demo: net/http over RDMA, served and fetched in a guest that has a device.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p build
go build -o build/http ./examples/http
DEV=${DEV:-rxe} TIMEOUT=${TIMEOUT:-120} exec testbed/vm run testbed/demo/guest.sh
