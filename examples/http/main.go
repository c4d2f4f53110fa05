// Http serves a folder of files, and fetches files: with progress, several at once, going on where an earlier run was ended, and
// checked by their hashes. One port serves RDMA and plain TCP, so browsers and curl are clients too, and any web server is one to
// fetch from; -policy require is for RDMA alone.
//
//	http -listen :8080 -dir files
//	http http://10.9.0.1:8080/a http://10.9.0.1:8080/b
//
// RDMA comes in with two lines: compat.Listen for net.Listen in serve.go, compat.Transport for the client's transport here. All else
// would be the same without it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rconn/rdma/compat"
	"github.com/rconn/rdma/examples/internal/progress"
)

var (
	listen  = flag.String("listen", "", "serve on this `address`")
	dir     = flag.String("dir", ".", "the `folder` to serve, or to fetch into")
	out     = flag.String("o", "", "fetch into this `file`, if it is one; else the URL's last part is the name in -dir")
	atOnce  = flag.Int("n", 4, "fetch `N` files at once")
	retries = flag.Int("retries", 8, "give up after `N` attempts more that got not a byte further")
	stall   = flag.Duration("stall", 30*time.Second, "give an attempt up when nothing comes for this long")
	stats   = flag.Bool("stats", false, "tell what each connection counted")
	verbose = flag.Bool("v", false, "tell besides how each connection was made")
	policy  compat.Policy
)

func main() {
	flag.TextVar(&policy, "policy", compat.Prefer, "`prefer` RDMA, require it, or tcp-only")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: http -listen ADDRESS [-dir DIR]\n       http [-dir DIR | -o FILE] URL...")
		flag.PrintDefaults()
	}
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var err error
	switch {
	case *listen != "" && flag.NArg() == 0:
		err = serve(ctx, *listen, *dir)
	case *listen == "" && flag.NArg() > 0:
		err = fetch(ctx, flag.Args())
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
}

// fetch gets the files at some URLs.
func fetch(ctx context.Context, urls []string) error {
	jobs, err := jobsFor(urls, *dir, *out)
	if err != nil {
		return err
	}
	display := progress.New(os.Stdout, len(jobs))
	defer display.Close()
	log := slog.DiscardHandler
	if *verbose {
		log = slog.NewTextHandler(display, nil)
	}
	dialer := &compat.Dialer{Policy: policy, Timeout: 10 * time.Second}
	dialer.RDMA.Config.Logger = slog.New(log)
	transport := compat.Transport(dialer)
	transport.DisableCompression = true // ranges are of the files' own bytes
	defer transport.CloseIdleConnections()
	f := &fetcher{client: &http.Client{Transport: transport}, retries: *retries, backoff: time.Second / 4, stall: *stall,
		stats: *stats || *verbose, display: display}
	err = f.all(ctx, jobs, *atOnce)
	if ctx.Err() != nil {
		err = errors.New("interrupted; the same command goes on from here")
	}
	return err
}
