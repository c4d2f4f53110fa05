// Lock is a lock for several hosts in the memory of one, made of atomics: by compare-and-swap, by tickets, and with a lease.
// README.md tells why it is built so.
//
//	lock                                 # server and contenders in this process
//	lock -listen 10.9.0.1:7030           # the server alone
//	lock -addr 10.9.0.1:7030             # contenders, on another host or the same
//	lock -addr 10.9.0.1:7030 -processes  # each in a process of its own
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rconn/rdma/examples/internal/end"
	"github.com/rconn/rdma/examples/internal/remote"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := program(ctx, os.Args[1:]); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "lock:", err)
		os.Exit(1)
	}
}

func program(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("lock", flag.ExitOnError)
	listen := flags.String("listen", "", "serve the lock on this `address`, IP:port")
	addr := flags.String("addr", "", "contend for the lock at this `address`, IP:port")
	demo := flags.Bool("demo", false, "serve at -addr too; default if there is no address")
	kind := flags.String("kind", "", fmt.Sprintf("one of %q; default: all, and what becomes of dead holders", kinds))
	processes := flags.Bool("processes", false, "a process for each contender, instead of a goroutine")
	asJSON := flags.Bool("json", false, "print the contenders' tallies of one -kind as JSON")
	var c contest
	flags.IntVar(&c.contenders, "contenders", 8, "connections that contend")
	flags.IntVar(&c.of, "of", 0, "wait for so many contenders, of all processes, before the start; default: -contenders")
	flags.DurationVar(&c.lasts, "for", 500*time.Millisecond, "time for each kind")
	flags.DurationVar(&c.lease.lasts, "lease", 100*time.Millisecond, "time after which a lease may be taken over")
	_ = flags.Parse(args)
	c.of = max(c.of, c.contenders)
	if flags.NArg() > 0 || *listen != "" && *addr != "" || c.contenders < 1 || c.lease.lasts < time.Millisecond ||
		*kind != "" && !slices.Contains(kinds, *kind) || *asJSON && *kind == "" {
		flags.Usage()
		os.Exit(2)
	}

	if *listen != "" {
		o, err := newServer(*listen)
		if err != nil {
			return err
		}
		fmt.Printf("listening on %v\n", o.Addr())
		return errors.Join(serve(ctx, o), o.Close())
	}
	if *demo || *addr == "" {
		o, err := newServer(cmp.Or(*addr, "127.0.0.1:0"))
		if err != nil {
			return err
		}
		serving, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- serve(serving, o) }()
		defer func() {
			cancel()
			<-done
			_ = o.Close()
		}()
		*addr = o.Addr().String()
	}
	server, err := end.Parse(*addr)
	if err != nil {
		return err
	}
	if *asJSON {
		tallies, err := c.run(ctx, server, *kind)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(tallies)
	}
	return c.show(ctx, server, *kind, *processes)
}

func newServer(local string) (*remote.Owner, error) {
	addr, err := end.Parse(local)
	if err != nil {
		return nil, err
	}
	return remote.NewOwner(addr, memSize)
}

// serve lends the memory to everybody. All that the server itself does is to write the time, for the leases.
func serve(ctx context.Context, o *remote.Owner) error {
	clock := (*uint64)(unsafe.Pointer(&o.Bytes()[clockAt]))
	start := time.Now()
	now := time.NewTicker(time.Millisecond)
	defer now.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- o.Serve(ctx, nil) }()
	for {
		select {
		case <-now.C:
			atomic.StoreUint64(clock, ticks(time.Since(start)))
		case err := <-done:
			return err
		}
	}
}

// show contends and tells how it went.
func (c contest) show(ctx context.Context, addr netip.AddrPort, kind string, processes bool) error {
	first, err := join(ctx, addr) // tells early what is missing
	if err != nil {
		return err
	}
	dev := first.mem.Device()
	if err := first.close(); err != nil {
		return err
	}
	fmt.Printf("%d contenders over %s (%v)\n", c.contenders, dev.Name(), dev.Attr().Transport)
	which := kinds
	if kind != "" {
		which = []string{kind}
	}
	for _, k := range which {
		s, err := c.hold(ctx, addr, k, processes)
		if err != nil {
			return err
		}
		fmt.Println(s.line(k, c.lasts))
		if k != "none" && !s.exact() {
			return fmt.Errorf("the counter is wrong under the lock %s", k)
		}
	}
	if kind != "" {
		return nil
	}
	return c.showDeaths(ctx, addr)
}

func (c contest) showDeaths(ctx context.Context, addr netip.AddrPort) error {
	patience := 2 * c.lease.lasts
	tries, err := deadHolder(ctx, addr, patience)
	if err != nil {
		return err
	}
	fmt.Printf("a dead holder's lock is still taken after %v and %d tries\n", patience, tries)
	waited, err := deadLessee(ctx, addr, c.lease)
	if err != nil {
		return err
	}
	fmt.Printf("a dead holder's lease of %v was taken over after %v\n", c.lease.lasts, waited.Round(time.Millisecond))
	grown, _, err := lateHolder(ctx, addr, c.lease, false)
	if err != nil {
		return err
	}
	fmt.Printf("a holder that comes after its lease: two added 1 by WRITE, the counter grew by %d\n", grown)
	grown, told, err := lateHolder(ctx, addr, c.lease, true)
	if err != nil {
		return err
	}
	fmt.Printf("the same with its token: the counter grew by %d, and the late one was told: %v\n", grown, told)
	return nil
}
