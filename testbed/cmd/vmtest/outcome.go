package main

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/rconn/rdma/testbed/internal/vm"
)

// An outcome is one line of the report, what the test wants to be seen with it, and why if it is a failure.
type outcome struct {
	label   string
	passed  bool
	elapsed string
	seen    []string
	detail  string
}

func (o *outcome) fail(why string) {
	o.passed = false
	if o.detail != "" && !strings.HasSuffix(o.detail, "\n") {
		o.detail += "\n"
	}
	o.detail += why + "\n"
}

// judge makes a test's outcome of its record and of how its guest ended.
func judge(label string, r record, guest vm.Result) outcome {
	o := outcome{label: label, passed: r.passed(), elapsed: r.elapsed, seen: r.seen()}
	if o.passed {
		return o
	}
	o.detail = r.told()
	switch {
	case !r.begun:
		o.fail("was not run")
	case !r.ended:
		o.fail("did not end")
	case r.status == "0":
		o.fail("ended well without a PASS: skipped, or no such test")
	default:
		o.fail("exit status " + r.status)
	}
	if !r.ended && guest.Err != nil {
		o.fail(guest.Err.Error())
	}
	return o
}

// judgePair wants the test to pass in both guests. The one whose power the
// other cut has done its part.
func judgePair(label string, a, b record, guestA, guestB vm.Result) outcome {
	o := outcome{label: label, passed: true}
	for _, side := range []struct {
		role  string
		r     record
		guest vm.Result
	}{{"A", a, guestA}, {"B", b, guestB}} {
		one := judge(label, side.r, side.guest)
		if side.guest.Killed && side.r.begun && !side.r.ended {
			one.passed = true
		}
		if o.elapsed == "" {
			o.elapsed = one.elapsed
		}
		for _, line := range one.seen {
			o.seen = append(o.seen, side.role+": "+line)
		}
		if !one.passed {
			o.fail(indent(one.detail, side.role+"| "))
		}
	}
	if guestA.Killed && guestB.Killed {
		o.fail("each guest killed the other")
	}
	return o
}

// A report prints outcomes as they come, one line each, and counts them.
type report struct {
	mu             sync.Mutex
	out            io.Writer
	passed, failed int
	failures       []string // labels
}

func (r *report) add(o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.passed {
		r.passed++
		fmt.Fprintf(r.out, "ok   %s  %s\n", o.label, o.elapsed)
		for _, line := range o.seen {
			fmt.Fprintf(r.out, "     %s\n", line)
		}
		return
	}
	r.failed++
	r.failures = append(r.failures, o.label)
	fmt.Fprintf(r.out, "FAIL %s\n%s\n", o.label, indent(o.detail, "     "))
}

// close prints which failed, far below where each said so, and the last line, and returns the exit status: 0 only if all of the
// expected passed, and there were any.
func (r *report) close(expected int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed += max(0, expected-r.passed-r.failed)
	for _, label := range r.failures {
		fmt.Fprintf(r.out, "\nfailed: %s", label)
	}
	fmt.Fprintf(r.out, "\n%d passed, %d failed\n", r.passed, r.failed)
	if r.failed > 0 || r.passed == 0 {
		return 1
	}
	return 0
}

func indent(text, by string) string {
	text = strings.TrimRight(text, "\n")
	return by + strings.ReplaceAll(text, "\n", "\n"+by)
}
