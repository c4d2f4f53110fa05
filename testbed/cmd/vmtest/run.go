package main

import (
	"context"
	"time"

	"github.com/rconn/rdma/testbed/internal/vm"
)

// A runner runs jobs in guests.
type runner struct {
	bed    guests
	dir    string        // has guest.test; $OUT in the guests
	limit  time.Duration // for one test
	report *report
}

// guests is what a runner needs of a *vm.Bed.
type guests interface {
	Run(context.Context, vm.Spec) vm.Result
	RunPair(context.Context, vm.Spec, vm.Spec) (vm.Result, vm.Result)
}

// Time for a guest to boot, and for what a test may need past its own limit,
// which its process cannot keep when it is stuck in the kernel.
const (
	bootLimit = 60 * time.Second
	grace     = 15 * time.Second
)

func (r *runner) run(ctx context.Context, j job) {
	if j.paired {
		r.runPair(ctx, j)
		return
	}
	for tests := j.tests; len(tests) > 0; {
		tests = r.runSome(ctx, j, tests)
	}
}

// runSome runs tests in one guest and returns those left over if it died: the
// test it died of has failed, the ones after it are for another guest.
func (r *runner) runSome(ctx context.Context, j job, tests []string) (left []string) {
	seen := newTranscript(tests)
	ctx, stop := r.watch(ctx, seen)
	defer stop()
	guest := r.bed.Run(ctx, vm.Spec{
		Dev: j.dev, Out: r.dir, Stdout: seen, Command: script(tests, r.limit),
	})
	if ctx.Err() != nil && guest.Status == vm.StatusInterrupted {
		return nil
	}

	last := len(tests) - 1
	if guest.Err != nil {
		for last >= 0 && !seen.record(tests[last]).begun {
			last--
		}
		if last < 0 { // never came up: another would not either
			last = len(tests) - 1
		}
	}
	for i, test := range tests[:last+1] {
		record := seen.record(test)
		o := judge(j.label(test), record, guest)
		if i == last && o.passed && guest.Err != nil {
			o.fail("passed, but then its guest died: " + guest.Err.Error())
		}
		r.report.add(o)
	}
	return tests[last+1:]
}

func (r *runner) runPair(ctx context.Context, j job) {
	seenA, seenB := newTranscript(j.tests), newTranscript(j.tests)
	ctx, cancel := context.WithTimeout(ctx, bootLimit+r.limit+grace)
	defer cancel()
	spec := vm.Spec{Dev: j.dev, Out: r.dir, Command: script(j.tests, r.limit)}
	specA, specB := spec, spec
	specA.Stdout, specB.Stdout = seenA, seenB
	guestA, guestB := r.bed.RunPair(ctx, specA, specB)
	for _, test := range j.tests {
		r.report.add(judgePair(j.label(test), seenA.record(test), seenB.record(test), guestA, guestB))
	}
}

// watch returns a context that ends when the guest that seen listens to makes
// no progress: it must boot in time, then begin or end a test in time.
func (r *runner) watch(ctx context.Context, seen *transcript) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(bootLimit, func() { cancel(context.DeadlineExceeded) })
	seen.progress = func() { timer.Reset(r.limit + grace) }
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}
