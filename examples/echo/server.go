package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/rconn/rdma/rconn"
)

// serve echoes what clients send, each until it ends its direction, until ctx ends.
func serve(ctx context.Context, addr string) error {
	ln, err := rconn.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("listening on %v\n", ln.Addr())
	context.AfterFunc(ctx, func() { ln.Close() })
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		clients.Go(func() {
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			n, err := io.Copy(c, c)
			if cerr := c.Close(); err == nil {
				err = cerr
			}
			fmt.Printf("%v: %d bytes, %v\n", c.RemoteAddr(), n, err)
		})
	}
}
