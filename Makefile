# make          lists the targets
# make test     what a host can check
# make vm-test  what needs an RDMA device, in virtual machines

SHELL := /bin/bash

.NOTPARALLEL:
.PHONY: help setup test lint unit builds wire faults soak fuzz compat run bench bench-soft bench-verbs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

test: setup lint unit builds wire faults ## everything a host can check; installs its needs on Debian (as root)

setup:
	@tools/setup.sh

lint: ## gofmt, vet, staticcheck, go.mod files, shell scripts
	@tools/lint.sh

unit: ## the Go tests, with the race detector where there is cgo
	@tools/unit.sh

builds: ## build and start without cgo, on other systems, without RDMA headers or libraries
	@tools/builds.sh

wire: ## Wireshark decodes what the software device sends
	@tools/wire.sh

faults: ## compare docs/faults.md with the tests that name its rows
	@go run ./internal/checks/faults

soak: setup ## the tests of connections ROUNDS times, 20 if not set, on 1, 2 and 4 processors: an hour or more
	@tools/soak.sh

fuzz: ## each fuzz target, or those that match FUZZ, for FUZZTIME, 30s if not set
	@tools/fuzz.sh

compat: setup ## servers and clients of others, with redis-server and PostgreSQL; writes the matrix of docs/compat.md
	@tools/compat.sh

run: ## a file by net/http over RDMA and three classic cases, on the software device where there is no other
	@tools/run.sh

bench: ## streams on the software device beside TCP, with plots; ONLY=regexp, ROUNDS=7, DOC=file to write the tables to
	@tools/bench.sh host

bench-soft: ## of bench what has goals, in a minute
	@ONLY='round trip 64B|stream (64B|64KiB|1MiB)|http' tools/bench.sh host

bench-verbs: ## SEND, WRITE, READ, atomics side by side, here and on Soft-RoCE in a guest; DOC=file to write them to
	@tools/bench-verbs.sh

clean: ## remove what was built here; caches outside the checkout stay
	rm -rf build testbed/.build

# The test bed's targets are in testbed.mk.
vm-demo: ## a file by net/http over Soft-RoCE, for Go and for curl, in a guest
vm-setup: ## prepare this machine for guests; the other vm- targets do it too
vm-run: ## CMD='...': run a command in a fresh guest; DEV=rxe (default), siw or none, TIMEOUT=seconds
vm-shell: ## a shell in a guest
vm-pair: ## A='...' B='...': two guests on one cable
vm-test: ## the tests that need an RDMA device, in guests
vm-bench: ## streams on Soft-RoCE beside rstream and perftest, in a guest, with plots and goals; variables as for bench
vm-selftest: ## tests of the test bed itself
vm-clean: ## remove the test bed's cache
include testbed.mk
