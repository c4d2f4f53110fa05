// Kv is a store of keys and values that is asked by messages, SEND and RECV, with one shared receive queue for all its clients. It shows
// what happens when receives run out, and how they never do. README.md tells why it is built so.
//
//	kv                                            # server and clients in this process, three ways
//	kv -listen 10.9.0.1:7010                      # the server alone
//	kv -addr 10.9.0.1:7010                        # clients, on another host or the same
//	kv -listen 10.9.0.1:7010 -starve 2ms          # a server that posts its receives too late
//	kv -addr 10.9.0.1:7010 -credits=false         # and clients who do not care
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"github.com/rconn/rdma/examples/internal/end"
)

func main() {
	listen := flag.String("listen", "", "serve on this `address`, IP:port")
	addr := flag.String("addr", "", "use the server at this `address`, IP:port")
	demo := flag.Bool("demo", false, "serve at -addr too; default if there is no address")
	var c config
	flag.IntVar(&c.recvs, "recvs", 64, "server: receives posted, for all clients together")
	flag.IntVar(&c.clients, "max-clients", 8, "server: clients at a time; each gets its part of the receives as credits")
	flag.DurationVar(&c.starve, "starve", 0, "server: post receives again so much too late")
	var l load
	flag.IntVar(&l.clients, "clients", 8, "clients, each with a connection")
	flag.IntVar(&l.window, "window", 32, "requests that a client has outstanding, at most")
	flag.BoolVar(&l.credits, "credits", true, "never have more requests outstanding than the server has granted")
	flag.DurationVar(&l.lasts, "for", time.Second, "time to go on")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn) // the software device tells of each connection that breaks

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case flag.NArg() > 0, *listen != "" && *addr != "", c.clients < 1, c.recvs < max(4, c.clients), l.clients < 1, l.window < 1:
		flag.Usage()
		os.Exit(2)
	case *listen != "":
		err = serve(ctx, *listen, c)
	case *demo || *addr == "":
		err = show(ctx, cmp.Or(*addr, "127.0.0.1:0"), c, l)
	default:
		err = use(ctx, *addr, l)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "kv:", err)
		os.Exit(1)
	}
}

// serve tells once a second how it goes.
func serve(ctx context.Context, local string, c config) error {
	addr, err := end.Parse(local)
	if err != nil {
		return err
	}
	s, err := newServer(addr, c)
	if err != nil {
		return err
	}
	fmt.Printf("listening on %v\n", s.ln.Addr())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var requests, batches, low int64
	go eachSecond(ctx, func() {
		r, b, l := s.requests.Load(), s.batches.Load(), s.low.Load()
		if r > requests {
			fmt.Printf("%d requests/s in batches of %.1f, receives ran low %d times\n", r-requests, float64(r-requests)/float64(b-batches), l-low)
		}
		requests, batches, low = r, b, l
	})
	return errors.Join(s.run(ctx), s.close())
}

// use tells once a second how it goes, and at the end.
func use(ctx context.Context, server string, l load) error {
	addr, err := end.Parse(server)
	if err != nil {
		return err
	}
	last, start := int64(0), time.Now()
	n, errs := l.use(ctx, addr, func(n int64) {
		fmt.Printf("%d requests/s\n", n-last)
		last = n
	})
	took := time.Since(start).Seconds()
	fmt.Printf("%d requests in %.2f s, %.0f requests/s\n", n, took, float64(n)/took)
	if n, _ := broken(errs); n > 0 {
		fmt.Printf("%d of %d connections broke\n", n, l.clients)
	}
	return errors.Join(errs...)
}

// show has the same clients use a good server, one that posts receives late, and again that one without credits.
func show(ctx context.Context, local string, c config, l load) error {
	addr, err := end.Parse(local)
	if err != nil {
		return err
	}
	prompt, late := c, c
	prompt.starve, late.starve = 0, cmp.Or(c.starve, 2*time.Millisecond)
	for _, stage := range []struct {
		name    string
		config  config
		credits bool
	}{
		{"with credits", prompt, true},
		{"with credits, server late", late, true},
		{"without credits, server late", late, false},
	} {
		l.credits = stage.credits
		if err := showOne(ctx, addr, stage.name, stage.config, l); err != nil {
			return fmt.Errorf("%s: %w", stage.name, err)
		}
	}
	return nil
}

func showOne(ctx context.Context, addr netip.AddrPort, name string, c config, l load) error {
	s, err := newServer(addr, c)
	if err != nil {
		return err
	}
	dev := s.ln.Device()
	if name == "with credits" {
		fmt.Printf("%d receives for %d clients over %s (%v), who want %d requests outstanding and have credits for %d\n",
			c.recvs, l.clients, dev.Name(), dev.Attr().Transport, l.window, c.recvs/c.clients)
	}
	serving, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.run(serving) }()
	refused, start := rnr(dev.Name()), time.Now()
	n, errs := l.use(ctx, s.ln.Addr(), nil)
	rate := float64(n) / time.Since(start).Seconds()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		errs = append(errs, err)
	}
	errs = append(errs, s.close())

	told := fmt.Sprintf("%6.0f requests/s, receives ran low %d times", rate, s.low.Load())
	if refused = rnr(dev.Name()) - refused; refused > 0 {
		told += fmt.Sprintf(", %d times receiver not ready", refused)
	}
	err = errors.Join(errs...)
	if !l.credits && !dev.Attr().Caps.RNR {
		var lost int
		if lost, err = broken(errs); lost > 0 {
			told = fmt.Sprintf("%d of %d connections broke: no receive was posted, and %v does not wait for one", lost, l.clients, dev.Attr().Transport)
		}
	}
	fmt.Printf("%-29s %s\n", name, told)
	return err
}
