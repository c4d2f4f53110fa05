package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/testbed/internal/vm"
)

// fakeGuests plays guests: each test does what its name says.
type fakeGuests struct {
	boots int
}

var reTest = regexp.MustCompile(`-test.run '\^(\w+)\$'`)

func (f *fakeGuests) Run(ctx context.Context, spec vm.Spec) vm.Result {
	f.boots++
	return play(ctx, spec, "")
}

func (f *fakeGuests) RunPair(ctx context.Context, a, b vm.Spec) (vm.Result, vm.Result) {
	f.boots++
	return play(ctx, a, "A"), play(ctx, b, "B")
}

func play(ctx context.Context, spec vm.Spec, role string) vm.Result {
	died := vm.Result{Status: vm.StatusGuestDown, Err: errors.New("guest kernel failed")}
	for _, m := range reTest.FindAllStringSubmatch(spec.Command, -1) {
		test, does := m[1], m[1]
		if strings.Contains(does, "NoBoot") {
			return died
		}
		fmt.Fprintf(spec.Stdout, "\n%s%s\n=== RUN   %s\n", markBegin, test, test)
		// A word for one guest of a pair, like DiesB, is about that one only.
		is := func(word string) bool {
			return strings.Contains(does, word+role) || strings.HasSuffix(does, word)
		}
		end := func(status int, verdict string) {
			fmt.Fprintf(spec.Stdout, "the output\n%s\n\n%s%s %d\n", verdict, markEnd, test, status)
		}
		switch {
		case is("Fails"):
			end(1, "--- FAIL: "+test+" (0.10s)")
		case is("Shows"):
			fmt.Fprintf(spec.Stdout, "    some_test.go:7: seen: %s17 bytes\n    some_test.go:8: unseen\n", role)
			end(0, "--- PASS: "+test+" (0.10s)")
		case is("Skips"):
			end(0, "--- SKIP: "+test+" (0.00s)\nPASS")
		case is("Missing"):
			end(0, "testing: warning: no tests to run\nPASS")
		case is("ExitsBadly"):
			end(2, "--- PASS: "+test+" (0.10s)\npanic: after the test")
		case is("SubtestOnly"):
			end(0, "    --- PASS: "+test+"/sub (0.10s)")
		case is("Hangs"):
			<-ctx.Done()
			return vm.Result{Status: vm.StatusTimeout, Err: context.Cause(ctx)}
		case is("Killed"):
			return vm.Result{Killed: true}
		case is("Dies"):
			io.WriteString(spec.Stdout, "half a li")
			return died
		case is("PerishesLater"):
			end(0, "--- PASS: "+test+" (0.10s)")
			return died
		default:
			end(0, "--- PASS: "+test+" (0.10s)")
		}
	}
	return vm.Result{}
}

// runFake runs tests by their names and returns what was printed.
func runFake(t *testing.T, tests ...string) (out string, status, boots int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		jobs, err := plan(tests, everything)
		if err != nil {
			t.Fatal(err)
		}
		var buf bytes.Buffer
		fake := &fakeGuests{}
		r := &runner{bed: fake, limit: time.Minute, report: &report{out: &buf}}
		for _, j := range jobs {
			r.run(t.Context(), j)
		}
		out, status, boots = buf.String(), r.report.close(count(jobs)), fake.boots
		out = buf.String()
	})
	return out, status, boots
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		tests   string // separated by spaces
		status  int
		boots   int
		last    string
		further []string // in the output
	}{
		{"TestRxeFine TestRxeToo", 0, 1, "2 passed, 0 failed", []string{"ok   rxe/TestRxeFine  0.10s\n"}},
		{"TestBothFine", 0, 2, "2 passed, 0 failed", []string{"ok   rxe/TestBothFine", "ok   siw/TestBothFine"}},
		{"", 1, 0, "0 passed, 0 failed", nil},
		{"TestRxeFails TestRxeToo", 1, 1, "1 passed, 1 failed", []string{"FAIL rxe/TestRxeFails\n     === RUN   TestRxeFails\n     the output\n", "\n\nfailed: rxe/TestRxeFails\n1 passed"}},
		{"TestRxeShows", 0, 1, "1 passed, 0 failed", []string{"TestRxeShows  0.10s\n     17 bytes\n\n"}},
		{"TestPairRxeShows", 0, 1, "1 passed, 0 failed", []string{"0.10s\n     A: A17 bytes\n     B: B17 bytes\n\n"}},
		{"TestRxeSkips", 1, 1, "0 passed, 1 failed", []string{"without a PASS"}},
		{"TestRxeMissing", 1, 1, "0 passed, 1 failed", []string{"without a PASS"}},
		{"TestRxeSubtestOnly", 1, 1, "0 passed, 1 failed", []string{"without a PASS"}},
		{"TestRxeExitsBadly", 1, 1, "0 passed, 1 failed", []string{"exit status 2"}},
		{"TestRxeFine TestRxeDies TestRxeToo", 1, 2, "2 passed, 1 failed", []string{"=== RUN   TestRxeDies\n     half a li", "guest kernel failed"}},
		{"TestRxePerishesLater TestRxeToo", 1, 2, "1 passed, 1 failed", []string{"but then its guest died"}},
		{"TestRxeHangs TestRxeToo", 1, 2, "1 passed, 1 failed", []string{"did not end", "deadline exceeded"}},
		{"TestRxeNoBoot TestRxeToo", 1, 1, "0 passed, 2 failed", []string{"was not run"}},
		{"TestFreshRxeFine TestFreshRxeToo", 0, 2, "2 passed, 0 failed", nil},
		{"TestPairRxeFine", 0, 1, "1 passed, 0 failed", []string{"ok   rxe/TestPairRxeFine  0.10s\n"}},
		{"TestPairRxeFailsB", 1, 1, "0 passed, 1 failed", []string{"     B| the output"}},
		{"TestPairRxeSkipsA", 1, 1, "0 passed, 1 failed", []string{"     A| the output"}},
		{"TestPairRxeKilledB", 0, 1, "1 passed, 0 failed", nil},
		{"TestPairRxeKilled", 1, 1, "0 passed, 1 failed", []string{"each guest killed the other"}},
		{"TestPairRxeDiesB", 1, 1, "0 passed, 1 failed", []string{"B| did not end"}},
		{"TestPairRxeHangsA", 1, 1, "0 passed, 1 failed", []string{"A| did not end"}},
	} {
		t.Run(strings.ReplaceAll(c.tests, " ", "+"), func(t *testing.T) {
			out, status, boots := runFake(t, strings.Fields(c.tests)...)
			if status != c.status || boots != c.boots {
				t.Errorf("status %d after %d boots, want %d after %d", status, boots, c.status, c.boots)
			}
			if !strings.HasSuffix(out, "\n"+c.last+"\n") {
				t.Errorf("last line is not %q", c.last)
			}
			for _, want := range c.further {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in the output", want)
				}
			}
			if t.Failed() {
				t.Logf("output:\n%s", out)
			}
		})
	}
}

// Who said something keeps its name.
func TestTold(t *testing.T) {
	r := record{output: "=== RUN   TestA\n=== RUN   TestA/quiet\n=== RUN   TestA/speaks\n    a_test.go:1: of speaks\n=== RUN   TestA/dies\nSIGSEGV\n--- FAIL: TestA"}
	if got, want := r.told(), "=== RUN   TestA/speaks\n    a_test.go:1: of speaks\n=== RUN   TestA/dies\nSIGSEGV\n--- FAIL: TestA\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What was not even tried, after Ctrl-C, has failed too.
func TestReportCountsTheMissing(t *testing.T) {
	var buf bytes.Buffer
	r := &report{out: &buf}
	r.add(outcome{label: "rxe/TestRxeA", passed: true, elapsed: "1s"})
	if status := r.close(3); status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	if want := "\n1 passed, 2 failed\n"; !strings.HasSuffix(buf.String(), want) {
		t.Errorf("report %q, want it to end %q", buf.String(), want)
	}
}
