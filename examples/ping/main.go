// Ping measures the latency of RDMA WRITE WITH IMM there and back, on the packages rdma, cm and verbs alone. On iWARP, which
// has no immediate data, it is a WRITE and a SEND.
//
//	ping -listen 10.9.0.1:7000           # on one host
//	ping -n 10000 -size 64 10.9.0.1:7000 # on another, or the same
//
// The server serves one client after the other until it is interrupted, or -once one.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/examples/internal/end"
)

func main() {
	listen := flag.String("listen", "", "serve on this `address`, IP:port")
	once := flag.Bool("once", false, "serve one client only")
	n := flag.Int("n", 1000, "round trips")
	size := flag.Int("size", 64, "bytes written each way, 1 to 1 MiB")
	spin := flag.Duration("spin", 20*time.Microsecond, "watch for a completion this long before sleeping")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: ping -listen IP:PORT\n       ping [flags] IP:PORT")
		flag.PrintDefaults()
	}
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *size < 1 || *size > maxSize || *n < 1:
		err = fmt.Errorf("-size must be 1 to %d, -n at least 1", maxSize)
	case *listen != "" && flag.NArg() == 0:
		err = serve(ctx, *listen, *once, *spin)
	case *listen == "" && flag.NArg() == 1:
		err = ping(ctx, flag.Arg(0), *n, *size, *spin)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "ping:", err)
		os.Exit(1)
	}
}

// serve answers every write with one of the same size.
func serve(ctx context.Context, address string, once bool, spin time.Duration) error {
	addr, err := end.Parse(address)
	if err != nil {
		return err
	}
	ln, err := end.Listen(addr)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Printf("listening on %v\n", ln.Addr())
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		err = answer(ctx, req, spin)
		fmt.Printf("client %v done: %v\n", req.RemoteAddr(), err)
		if once {
			return err
		}
	}
}

func answer(ctx context.Context, req cm.Request, spin time.Duration) error {
	s, err := newSide(ctx, req, spin)
	if err != nil {
		return errors.Join(err, req.Reject(nil), req.Close())
	}
	defer s.close()
	if err := s.setPeer(req.Param().PrivateData); err != nil {
		return errors.Join(err, req.Reject(nil))
	}
	if err := req.Accept(ctx, s.param()); err != nil {
		return err
	}
	for {
		size, err := s.receive()
		if errors.Is(err, end.ErrGone) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.write(size); err != nil {
			return err
		}
	}
}

// ping writes and waits for the answer n times, and prints what it took.
func ping(ctx context.Context, address string, n, size int, spin time.Duration) error {
	remote, err := end.Parse(address)
	if err != nil {
		return err
	}
	id, err := end.Resolve(ctx, remote)
	if err != nil {
		return err
	}
	s, err := newSide(ctx, id, spin)
	if err != nil {
		return errors.Join(err, id.Close())
	}
	defer s.close()
	reply, err := id.Connect(ctx, s.param())
	if err != nil {
		return err
	}
	if err := s.setPeer(reply.PrivateData); err != nil {
		return err
	}
	dev := id.Device()
	fmt.Printf("%v -> %v on %s (%v), %d bytes\n", id.LocalAddr(), id.RemoteAddr(), dev.Name(), dev.Attr().Transport, size)

	trips := make([]time.Duration, n)
	for i := range trips {
		start := time.Now()
		if err := s.write(size); err != nil {
			return err
		}
		if _, err := s.receive(); err != nil {
			return cmp.Or(ctx.Err(), err)
		}
		trips[i] = time.Since(start)
	}
	slices.Sort(trips)
	at := func(q float64) time.Duration { return trips[int(q*float64(n-1))].Round(100 * time.Nanosecond) }
	fmt.Printf("%d round trips: min %v, median %v, 90%% %v, 99%% %v, max %v\n", n, at(0), at(.5), at(.9), at(.99), at(1))
	return nil
}
