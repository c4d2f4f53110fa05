// Params is a pool of parameters that others read and update without its owner doing anything: READ, WRITE and atomics. It shows torn
// reads, and two ways to prevent them. README.md tells why it is built so.
//
//	params                                # owner, readers and writers in this process
//	params -listen 10.9.0.1:7020          # the owner alone, who tells what the others cost him
//	params -addr 10.9.0.1:7020            # readers and writers, on another host or the same
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/rconn/rdma/examples/internal/end"
	"github.com/rconn/rdma/examples/internal/remote"
)

func main() {
	listen := flag.String("listen", "", "own a pool on this `address`, IP:port")
	addr := flag.String("addr", "", "read and update the pool of the owner at this `address`, IP:port")
	demo := flag.Bool("demo", false, "own the pool at -addr too; default if there is no address")
	var l load
	flag.IntVar(&l.words, "words", 16384, "parameters of the vector, the same at both ends")
	flag.IntVar(&l.readers, "readers", 2, "connections that read")
	flag.IntVar(&l.writers, "writers", 2, "connections that update")
	flag.DurationVar(&l.every, "every", time.Millisecond, "time between two updates of a writer")
	flag.DurationVar(&l.lasts, "for", time.Second, "time for each way to read")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case flag.NArg() > 0, *listen != "" && *addr != "", l.words < 1, l.every <= 0:
		flag.Usage()
		os.Exit(2)
	case *listen != "":
		err = own(ctx, *listen, l.words)
	case *demo || *addr == "":
		err = both(ctx, cmp.Or(*addr, "127.0.0.1:0"), l)
	default:
		err = visit(ctx, *addr, l)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "params:", err)
		os.Exit(1)
	}
}

// own lends a pool to everybody, and tells what that costs this process.
func own(ctx context.Context, local string, words int) error {
	o, err := newOwner(local, words)
	if err != nil {
		return err
	}
	defer o.Close()
	fmt.Printf("listening on %v\n", o.Addr())
	var a account
	return o.Serve(ctx, func(conns int) { a.changed(conns, time.Now(), cpuTime()) })
}

func newOwner(local string, words int) (*remote.Owner, error) {
	addr, err := end.Parse(local)
	if err != nil {
		return nil, err
	}
	return remote.NewOwner(addr, poolSize(words))
}

// visit reads and updates in each of the ways.
func visit(ctx context.Context, owner string, l load) error {
	addr, err := end.Parse(owner)
	if err != nil {
		return err
	}
	p, err := openPool(ctx, addr, inPlace, l.words) // keeps the pool lent between the ways
	if err != nil {
		return err
	}
	defer p.mem.Close()
	dev := p.mem.Device()
	fmt.Printf("%d parameters over %s (%v), %d readers, %d writers\n", l.words, dev.Name(), dev.Attr().Transport, l.readers, l.writers)
	cpu, start := cpuTime(), time.Now()
	for w := range wayCount {
		r, err := run(ctx, addr, w, l)
		if err != nil {
			return err
		}
		per := func(n int) float64 { return float64(n) / r.took.Seconds() }
		fmt.Printf("%-12v  %6.0f reads/s, %5d of %5d torn, %5d retries, %5.0f updates/s\n", w, per(r.reads), r.torn, r.reads, r.retries, per(r.updates))
		if w != inPlace && r.torn > 0 {
			return fmt.Errorf("%d torn reads by way of %v", r.torn, w)
		}
	}
	fmt.Printf("this process used %.3f s of CPU in %.2f s\n", (cpuTime() - cpu).Seconds(), time.Since(start).Seconds())
	return nil
}

// both is owner and visitors in one process.
func both(ctx context.Context, local string, l load) error {
	o, err := newOwner(local, l.words)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- o.Serve(ctx, nil) }()
	err = visit(ctx, o.Addr().String(), l)
	cancel()
	<-served
	return errors.Join(err, o.Close())
}
