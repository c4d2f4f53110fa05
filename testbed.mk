# The test bed: guests with Soft-RoCE and soft-iWARP; see testbed/README.md.
# Variables: CMD, A, B, DEV, DEV_A, DEV_B, TIMEOUT, OUT, KARGS, MEMORY; for vm-test
# RUN, JOBS, TEST_TIMEOUT. make itself ends with 2 whatever a command's own exit
# status was; call testbed/vm to have that.

.PHONY: vm-setup vm-run vm-demo vm-shell vm-pair vm-test vm-bench vm-selftest vm-clean

vm-setup:
	@testbed/vm setup

# $(value) keeps the dollars in the commands for the guest's shell.
vm-run: export VM_CMD = $(value CMD)
vm-run:
	@testbed/vm run "$$VM_CMD"

vm-demo:
	@testbed/demo/run.sh

vm-shell:
	@testbed/vm shell

vm-pair: export VM_A = $(value A)
vm-pair: export VM_B = $(value B)
vm-pair:
	@testbed/vm pair "$$VM_A" "$$VM_B"

vm-test:
	@testbed/vm test

vm-bench:
	@tools/bench.sh guest

vm-selftest:
	@testbed/selftest.sh

vm-clean:
	@rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/rdma-testbed" testbed/.build
