package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/rconn/rdma/examples/internal/progress"
	"github.com/rconn/rdma/rconn"
)

// send sends size bytes to addr and reads them back at the same time.
func send(ctx context.Context, addr string, size int64) error {
	nc, err := new(rconn.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	c := nc.(*rconn.Conn)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()

	start := time.Now()
	sent := make(chan error, 1)
	out, back := sha256.New(), sha256.New()
	go func() {
		_, err := io.Copy(c, io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{}), size), out))
		if err == nil {
			err = c.CloseWrite()
		}
		sent <- err
	}()
	display := progress.New(os.Stdout, 1)
	defer display.Close()
	bar := display.Add(addr)
	bar.Start(0, size)
	n, err := io.Copy(io.MultiWriter(back, bar), c)
	if serr := <-sent; err == nil {
		err = serr
	}
	if err != nil {
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	if n != size || !equal(out, back) {
		return fmt.Errorf("sent %d bytes, hash %x; got %d, hash %x", size, out.Sum(nil), n, back.Sum(nil))
	}
	took := time.Since(start)
	info := c.Info()
	fmt.Printf("%d bytes there and back in %v, %.1f MiB/s each way, over %s (%v), hash %x equal\n", n,
		took.Round(time.Millisecond), float64(n)/(1<<20)/took.Seconds(), info.Device, info.Transport, out.Sum(nil)[:8])
	return nil
}

func equal(a, b hash.Hash) bool { return string(a.Sum(nil)) == string(b.Sum(nil)) }
