// Command vmtest runs the guest tests, testbed/tests, each in the kind of guest
// that its name asks for. testbed/vm test builds and starts it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rconn/rdma/testbed/internal/vm"
)

func main() {
	// SIGPIPE too: whoever stops reading us must not leave a guest behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	status, err := test(ctx, os.Getenv("REPO"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		status = 1
	}
	os.Exit(status)
}

func test(ctx context.Context, root string) (int, error) {
	only, err := regexp.Compile(os.Getenv("RUN"))
	if err != nil {
		return 0, fmt.Errorf("RUN: %w", err)
	}
	seconds, err := number("TEST_TIMEOUT", "300")
	if err != nil {
		return 0, err
	}
	workers, err := number("JOBS", "1")
	if err != nil {
		return 0, err
	}
	bed, err := vm.Prepare(ctx, root, os.Stderr)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "rdma-vmtest-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	tests, err := build(ctx, root, filepath.Join(dir, "guest.test"))
	if err != nil {
		return 0, err
	}
	if os.Getenv("RUN") == "" {
		tests = slices.DeleteFunc(tests, ofServers)
	}
	jobs, err := plan(tests, only)
	if err != nil {
		return 0, err
	}
	if slices.ContainsFunc(jobs, job.wantServers) {
		if err := buildServers(ctx, root, filepath.Join(dir, "bin")); err != nil {
			return 0, err
		}
	}

	r := &runner{
		bed: bed, dir: dir, limit: time.Duration(seconds) * time.Second,
		report: &report{out: os.Stdout},
	}
	queue := make(chan job)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for j := range queue {
				r.run(ctx, j)
			}
		})
	}
	for _, j := range jobs {
		if ctx.Err() != nil {
			break
		}
		queue <- j
	}
	close(queue)
	wg.Wait()
	return r.report.close(count(jobs)), nil
}

// build compiles the guest tests, and beside them in bin the programs that they start, and returns the tests' names. One of those is
// the tests themselves, with stricter checks of what is passed to C.
func build(ctx context.Context, root, binary string) ([]string, error) {
	bin := filepath.Join(filepath.Dir(binary), "bin") + string(filepath.Separator)
	for _, args := range [][]string{
		{"test", "-C", root, "-c", "-tags", "guest", "-o", binary, "./testbed/tests"},
		{"test", "-C", root, "-c", "-tags", "guest", "-o", bin + "cgocheck.test", "./testbed/tests"},
		{"build", "-C", root, "-o", bin, "./examples/..."},
	} {
		compile := exec.CommandContext(ctx, "go", args...)
		if slices.Contains(args, bin+"cgocheck.test") {
			compile.Env = append(os.Environ(), "GOEXPERIMENT=cgocheck2")
		}
		compile.Stdout, compile.Stderr = os.Stderr, os.Stderr
		if err := compile.Run(); err != nil {
			return nil, fmt.Errorf("go %s: %w", args[0], err)
		}
	}
	if err := buildPeers(ctx, filepath.Join(root, "testbed", "peers"), bin); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, binary, "-test.list", "^Test").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the guest tests: %w", err)
	}
	return strings.Fields(string(bytes.TrimSpace(out))), nil
}

// ofServers reports whether a test runs those of compat/servers, which need other people's modules and minutes. It runs
// only when RUN names it.
func ofServers(test string) bool { return strings.Contains(test, "Compat") }

func (j job) wantServers() bool { return slices.ContainsFunc(j.tests, ofServers) }

// buildServers compiles the tests of compat/servers, and rdmaproxy for them.
func buildServers(ctx context.Context, root, bin string) error {
	for _, args := range [][]string{
		{"test", "-C", filepath.Join(root, "compat", "servers"), "-c", "-tags", "real", "-o", filepath.Join(bin, "servers.test"), "."},
		{"build", "-C", root, "-o", filepath.Join(bin, "rdmaproxy"), "./cmd/rdmaproxy"},
	} {
		compile := exec.CommandContext(ctx, "go", args...)
		compile.Stdout, compile.Stderr = os.Stderr, os.Stderr
		if err := compile.Run(); err != nil {
			return fmt.Errorf("go %s: %w", args[0], err)
		}
	}
	return nil
}

// buildPeers compiles the C programs, of one file each.
func buildPeers(ctx context.Context, dir, bin string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return err
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".c")
		compile := exec.CommandContext(ctx, "gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-o", bin+name, file, "-lrdmacm")
		compile.Stdout, compile.Stderr = os.Stderr, os.Stderr
		if err := compile.Run(); err != nil {
			return fmt.Errorf("gcc %s: %w", file, err)
		}
	}
	return nil
}

// number reads a positive number from the environment.
func number(name, byDefault string) (int, error) {
	text := cmp.Or(os.Getenv(name), byDefault)
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s=%q: want a positive number", name, text)
	}
	return n, nil
}
