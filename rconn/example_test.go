package rconn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/rconn/rdma/rconn"
)

// A net/http server and its client over RDMA; here over loopback, which the software device serves. One line each is not
// package net's.
func Example() {
	ln, err := rconn.Listen("tcp", "127.0.0.1:0") // was net.Listen
	if err != nil {
		log.Fatal(err)
	}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello, %s", r.URL.Path[1:])
	})}
	go server.Serve(ln)
	defer server.Close()

	client := &http.Client{
		Transport: &http.Transport{DialContext: (&rconn.Dialer{}).DialContext}, // was net.Dialer
	}
	resp, err := client.Get("http://" + ln.Addr().String() + "/gopher")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(string(body), err)
	// Output: hello, gopher <nil>
}

// A dial fails as with package net.
func ExampleDialer() {
	d := rconn.Dialer{Timeout: 5 * time.Second}
	_, err := d.Dial("tcp", "127.0.0.1:1")
	fmt.Println(errors.Is(err, syscall.ECONNREFUSED))
	// Output: true
}

// A server with larger rings, for the software device alone, says what its connection runs on.
func ExampleListenConfig() {
	lc := rconn.ListenConfig{Config: rconn.Config{
		Device: "software", SendBuffer: 2 << 20, RecvBuffer: 2 << 20, Linger: time.Second,
	}}
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := rconn.Dial("tcp", ln.Addr().String())
		if err != nil {
			log.Fatal(err)
		}
		c.Close()
	}()

	c, err := ln.Accept()
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	info := c.(*rconn.Conn).Info()
	fmt.Println(info.Device, info.Transport, info.SendBuffer)
	// Output: software0 iWARP 2097152
}

// Half-close: a client that has sent everything still reads the answer, up to io.EOF.
func ExampleConn_CloseWrite() {
	ln, err := rconn.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c) // until the client's CloseWrite
		fmt.Fprintf(c, "%d bytes arrived", n)
	}()

	c, err := rconn.Dial("tcp", ln.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	c.Write(make([]byte, 100000))
	c.(*rconn.Conn).CloseWrite()
	answer, err := io.ReadAll(c)
	fmt.Println(string(answer), err)
	// Output: 100000 bytes arrived <nil>
}

// Several buffers travel as one Write, and small ones together.
func ExampleConn_WriteBuffers() {
	ln, err := rconn.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := rconn.Dial("tcp", ln.Addr().String())
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		c.(*rconn.Conn).WriteBuffers(&net.Buffers{[]byte("head, "), []byte("body")})
	}()

	c, err := ln.Accept()
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	all, err := io.ReadAll(c)
	fmt.Println(string(all), err)
	// Output: head, body <nil>
}
