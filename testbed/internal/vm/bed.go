// Package vm runs commands in guests: stock Debian kernels under QEMU's software
// emulation, on this machine's own root file system, with an RDMA device made
// of software.
package vm

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
)

// A Bed is a machine made ready to run guests.
type Bed struct {
	root   string // of the repository
	kernel string // directory with vmlinux and lib/modules
	initrd string
}

// Prepare sets this machine up, which is quick when it has been done before.
// Progress and complaints go to log.
func Prepare(ctx context.Context, root string, log io.Writer) (*Bed, error) {
	setup := exec.CommandContext(ctx, filepath.Join(root, "testbed", "setup.sh"))
	setup.Stderr = log
	out, err := setup.Output()
	if err != nil {
		return nil, fmt.Errorf("test bed set-up: %w", err)
	}
	paths := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(paths) != 2 {
		return nil, fmt.Errorf("test bed set-up: unexpected output %q", out)
	}
	return &Bed{root: root, kernel: paths[0], initrd: paths[1]}, nil
}
