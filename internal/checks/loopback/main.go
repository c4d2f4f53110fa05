// Loopback sends 1 MiB to itself over rconn, and prints the device that carried it. tools/builds.sh runs it where something is missing.
package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rconn/rdma/rconn"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ln, err := rconn.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	done := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			_, err = c.Write(sent)
			err = errors.Join(err, c.Close())
		}
		done <- err
	}()
	c, err := rconn.Dial("tcp", ln.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	if !bytes.Equal(sent, got) {
		return fmt.Errorf("sent %d bytes, got %d others", len(sent), len(got))
	}
	fmt.Println("1 MiB over", c.(*rconn.Conn).Info().Device)
	return nil
}
