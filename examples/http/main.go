// Http serves a folder of files by net/http over RDMA, and fetches one. Both use net/http as it is; RDMA comes in with one
// line each: rconn.Listen for net.Listen, DialContext of an rconn.Dialer for the transport.
//
//	http -listen :8080 -dir files
//	http -o copy http://10.9.0.1:8080/name
package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rconn/rdma/examples/internal/progress"
	"github.com/rconn/rdma/rconn"
)

func main() {
	listen := flag.String("listen", "", "serve on this `address`")
	dir := flag.String("dir", ".", "the folder to serve")
	out := flag.String("o", os.DevNull, "write what was fetched to this `file`")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: http -listen ADDRESS [-dir DIR]\n       http [-o FILE] URL")
		flag.PrintDefaults()
	}
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *listen != "" && flag.NArg() == 0:
		err = serve(ctx, *listen, *dir)
	case *listen == "" && flag.NArg() == 1:
		err = fetch(ctx, flag.Arg(0), *out)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
}

// serve serves dir until ctx ends, then lets requests in progress finish.
func serve(ctx context.Context, addr, dir string) error {
	ln, err := rconn.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("serving %s on %v\n", dir, ln.Addr())
	srv := &http.Server{Handler: http.FileServer(http.Dir(dir))}
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		done <- srv.Shutdown(sctx)
	}()
	if err := srv.Serve(ln); err != http.ErrServerClosed {
		return err
	}
	return <-done
}

// fetch gets url, writes it to a file, and says what it took.
func fetch(ctx context.Context, url, path string) error {
	var conn *rconn.Conn // the one that the request travels on
	dialer := &rconn.Dialer{}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err == nil {
				conn = c.(*rconn.Conn)
			}
			return c, err
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	start := time.Now()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, hash, progress.New(os.Stdout, resp.ContentLength)), resp.Body)
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	took := time.Since(start)
	info, st := conn.Info(), conn.Stats()
	fmt.Printf("%x\n%d bytes in %v, %.1f MiB/s, over %s (%v)\n", hash.Sum(nil), n, took.Round(time.Millisecond),
		float64(n)/(1<<20)/took.Seconds(), info.Device, info.Transport)
	fmt.Printf("%d data messages received, %d grants sent, %d completions, %d waits of which %d spun enough\n", st.DataReceived,
		st.GrantsSent, st.Completions, st.Waits, st.SpinHits)
	return nil
}
