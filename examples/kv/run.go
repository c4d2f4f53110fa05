package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/examples/internal/end"
	"github.com/rconn/rdma/verbs"
)

// load is what clients do to a server.
type load struct {
	clients int
	window  int
	credits bool
	lasts   time.Duration
}

// use has clients at work, each by a connection and a goroutine of its own, until the time is over or all have failed. It returns how many
// answers came, and what became of each client. tell, if not nil, hears the former once a second.
func (l load) use(ctx context.Context, addr netip.AddrPort, tell func(answers int64)) (int64, []error) {
	var (
		wg    sync.WaitGroup
		count atomic.Int64
	)
	errs := make([]error, l.clients)
	until := time.Now().Add(l.lasts)
	for i := range l.clients {
		wg.Go(func() {
			u, err := dial(ctx, addr, l.window, l.credits, &count)
			if err == nil {
				err = errors.Join(u.run(until), u.close())
			}
			errs[i] = err
		})
	}
	if tell != nil {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go eachSecond(ctx, func() { tell(count.Load()) })
	}
	wg.Wait()
	return count.Load(), errs
}

func eachSecond(ctx context.Context, f func()) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// broken counts the clients whose connection broke, and takes them from the errors. A client sees that as the end of its connection, as a
// request flushed, or, where soft-iWARP was sending when its TCP connection ended, as a request that failed.
func broken(errs []error) (n int, others error) {
	for _, err := range errs {
		if errors.Is(err, end.ErrGone) || errors.Is(err, &verbs.CompletionError{Status: verbs.StatusWRFlushErr}) ||
			errors.Is(err, &verbs.CompletionError{Status: verbs.StatusLocQPOpErr}) {
			n++
			continue
		}
		others = errors.Join(others, err)
	}
	return n, others
}

// rnr sums up what a device has counted of messages that found no receive, its own and its peers'; 0 where it does not count them.
func rnr(device string) (sum int) {
	files, _ := filepath.Glob(fmt.Sprintf("/sys/class/infiniband/%s/ports/1/hw_counters/*rnr*", device))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		sum += n
	}
	return sum
}
