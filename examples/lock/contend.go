package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/rconn/rdma/examples/internal/remote"
)

// kinds are the ways to add 1 to the counter.
var kinds = []string{"none", "cas", "ticket", "lease"}

func add(ctx context.Context, kind string, c *contender, l lease) error {
	switch kind {
	case "none":
		return increment(ctx, c, none{})
	case "cas":
		return increment(ctx, c, cas{})
	case "ticket":
		return increment(ctx, c, ticket{})
	case "lease":
		return l.increment(ctx, c)
	}
	return fmt.Errorf("there is no lock %q, but there are %q", kind, kinds)
}

// contest is who contends, how, and for how long.
type contest struct {
	contenders int
	of         int // contenders in all, those of other processes too
	lasts      time.Duration
	lease      lease
}

// tally is what one contender has to show.
type tally struct{ Acquired, Retries, Fenced int }

// run has contenders contend, each by a connection and a goroutine of its own.
func (c contest) run(ctx context.Context, addr netip.AddrPort, kind string) ([]tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tallies, errs := make([]tally, c.contenders), make([]error, c.contenders)
	var wg sync.WaitGroup
	for i := range c.contenders {
		wg.Go(func() {
			if tallies[i], errs[i] = c.one(ctx, addr, kind); errs[i] != nil {
				cancel() // the others would wait for it
			}
		})
	}
	wg.Wait()
	return tallies, errors.Join(errs...)
}

func (c contest) one(ctx context.Context, addr netip.AddrPort, kind string) (t tally, err error) {
	me, err := join(ctx, addr)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, me.close()) }()
	if err := me.ready(ctx, c.of); err != nil {
		return t, err
	}
	for until := time.Now().Add(c.lasts); time.Now().Before(until); {
		switch err := add(ctx, kind, me, c.lease); {
		case errors.Is(err, errFenced):
			t.Fenced++
		case err != nil:
			return t, err
		default:
			t.Acquired++
		}
	}
	t.Retries = me.retries
	return t, nil
}

// runProcesses does as run, with a process for each contender.
func (c contest) runProcesses(ctx context.Context, addr netip.AddrPort, kind string) ([]tally, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	tallies, errs := make([]tally, c.contenders), make([]error, c.contenders)
	var wg sync.WaitGroup
	for i := range c.contenders {
		wg.Go(func() {
			child := exec.CommandContext(ctx, program, "-addr", addr.String(), "-json", "-kind", kind, "-contenders", "1",
				"-of", strconv.Itoa(c.of), "-for", c.lasts.String(), "-lease", c.lease.lasts.String())
			child.Stderr = os.Stderr
			out, err := child.Output()
			if err == nil {
				var one []tally
				if err = json.Unmarshal(out, &one); err == nil {
					tallies[i] = one[0]
				}
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return tallies, errors.Join(errs...)
}

// summary is what the tallies and the counter say.
type summary struct {
	total    tally
	min, max int // acquisitions of a contender
	counted  int // by how much the counter has grown
}

func summarize(tallies []tally, counted int) summary {
	s := summary{min: tallies[0].Acquired, counted: counted}
	for _, t := range tallies {
		s.total.Acquired += t.Acquired
		s.total.Retries += t.Retries
		s.total.Fenced += t.Fenced
		s.min, s.max = min(s.min, t.Acquired), max(s.max, t.Acquired)
	}
	return s
}

// exact reports whether the counter has grown by as much as was added to it.
func (s summary) exact() bool { return s.counted == s.total.Acquired }

func (s summary) line(kind string, lasts time.Duration) string {
	verdict := "is exact"
	if !s.exact() {
		verdict = fmt.Sprintf("has lost %d of %d", s.total.Acquired-s.counted, s.total.Acquired)
	}
	return fmt.Sprintf("%-7s %6.0f acquisitions/s, %4d to %4d for each contender, %6d retries, counter %s",
		kind, float64(s.total.Acquired)/lasts.Seconds(), s.min, s.max, s.total.Retries, verdict)
}

// hold runs a contest and looks at the counter before and after.
func (c contest) hold(ctx context.Context, addr netip.AddrPort, kind string, processes bool) (summary, error) {
	before, err := counter(ctx, addr)
	if err != nil {
		return summary{}, err
	}
	run := c.run
	if processes {
		run = c.runProcesses
	}
	tallies, err := run(ctx, addr, kind)
	if err != nil {
		return summary{}, err
	}
	after, err := counter(ctx, addr)
	return summarize(tallies, after-before), err
}

// counter reads the counter's value.
func counter(ctx context.Context, addr netip.AddrPort) (int, error) {
	mem, err := remote.Dial(ctx, addr, 8)
	if err != nil {
		return 0, err
	}
	n, err := mem.Do(mem.Load(counterAt))
	return int(n & valueMask), errors.Join(err, mem.Close())
}
