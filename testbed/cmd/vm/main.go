// Command vm runs commands in guests of the test bed. testbed/vm builds and
// starts it; see there.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/rconn/rdma/testbed/internal/vm"
)

func main() {
	// SIGPIPE too: whoever stops reading us must not leave a guest behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	status, err := command(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
	}
	os.Exit(status)
}

const usage = `usage: vm setup | run COMMAND | shell | pair COMMAND_A COMMAND_B
environment: DEV DEV_A DEV_B TIMEOUT OUT KARGS MEMORY`

// Exit status of a wrong call, as shells have it.
const statusUsage = 2

func command(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return statusUsage, fmt.Errorf("%s", usage)
	}
	bed, err := vm.Prepare(ctx, os.Getenv("REPO"), os.Stderr)
	if err != nil {
		return 1, err
	}
	switch verb, args := args[0], args[1:]; {
	case verb == "setup" && len(args) == 0:
		return 0, nil
	case verb == "run" && len(args) == 1 && args[0] != "":
		return run(ctx, bed, vm.Spec{Command: args[0]}, "120")
	case verb == "shell" && len(args) == 0:
		return run(ctx, bed, vm.Spec{Shell: true}, "86400")
	case verb == "pair" && len(args) == 2 && args[0] != "" && args[1] != "":
		return pair(ctx, bed, args[0], args[1])
	}
	return statusUsage, fmt.Errorf("%s", usage)
}

func run(ctx context.Context, bed *vm.Bed, spec vm.Spec, limit string) (int, error) {
	ctx, cancel, err := withLimit(ctx, limit)
	if err != nil {
		return statusUsage, err
	}
	defer cancel()
	if err := fill(&spec, "DEV"); err != nil {
		return statusUsage, err
	}
	spec.Stdout = os.Stdout
	result := bed.Run(ctx, spec)
	return result.Status, result.Err
}

func pair(ctx context.Context, bed *vm.Bed, commandA, commandB string) (int, error) {
	ctx, cancel, err := withLimit(ctx, "120")
	if err != nil {
		return statusUsage, err
	}
	defer cancel()
	var mu sync.Mutex
	outA := &vm.PrefixWriter{Prefix: "A| ", Out: os.Stdout, Mu: &mu}
	outB := &vm.PrefixWriter{Prefix: "B| ", Out: os.Stdout, Mu: &mu}
	a := vm.Spec{Command: commandA, Stdout: outA}
	b := vm.Spec{Command: commandB, Stdout: outB}
	if err := errors.Join(fill(&a, "DEV_A"), fill(&b, "DEV_B")); err != nil {
		return statusUsage, err
	}
	resultA, resultB := bed.RunPair(ctx, a, b)
	outA.Flush()
	outB.Flush()
	return verdict(resultA, resultB)
}

// verdict is 0 only if both guests did well.
func verdict(a, b vm.Result) (int, error) {
	for _, r := range []struct {
		role string
		vm.Result
	}{{"A", a}, {"B", b}} {
		switch {
		case r.Err != nil:
			return r.Status, fmt.Errorf("guest %s: %w", r.role, r.Err)
		case r.Status != 0:
			return r.Status, fmt.Errorf("guest %s: exit status %d", r.role, r.Status)
		}
	}
	return 0, nil
}

// fill takes the rest of spec from the environment.
func fill(spec *vm.Spec, devVar string) (err error) {
	spec.Dev = cmp.Or(os.Getenv(devVar), os.Getenv("DEV"))
	spec.Out = os.Getenv("OUT")
	spec.KArgs = os.Getenv("KARGS")
	if memory := os.Getenv("MEMORY"); memory != "" {
		if spec.Memory, err = strconv.Atoi(memory); err != nil || spec.Memory <= 0 {
			return fmt.Errorf("MEMORY=%q: want MiB", memory)
		}
	}
	return nil
}

func withLimit(ctx context.Context, limit string) (context.Context, context.CancelFunc, error) {
	seconds, err := strconv.Atoi(cmp.Or(os.Getenv("TIMEOUT"), limit))
	if err != nil || seconds <= 0 {
		return nil, nil, fmt.Errorf("TIMEOUT=%q: want seconds", os.Getenv("TIMEOUT"))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
	return ctx, cancel, nil
}
