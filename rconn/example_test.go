package rconn_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/rconn/rdma/rconn"
)

// A net/http server over RDMA: one line is not package net's.
func ExampleListen() {
	ln, err := rconn.Listen("tcp", ":8080")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(ln, http.FileServer(http.Dir("."))))
}

// A net/http client over RDMA.
func ExampleDialer() {
	client := &http.Client{
		Transport: &http.Transport{DialContext: (&rconn.Dialer{Timeout: 5 * time.Second}).DialContext},
	}
	resp, err := client.Get("http://10.9.0.1:8080/")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
}

// A server with larger rings, which says what its connections run on.
func ExampleListenConfig() {
	lc := rconn.ListenConfig{Config: rconn.Config{SendBuffer: 2 << 20, RecvBuffer: 2 << 20, Linger: time.Second}}
	ln, err := lc.Listen(context.Background(), "tcp", ":7001")
	if err != nil {
		log.Fatal(err)
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func(c net.Conn) {
			defer c.Close()
			conn := c.(*rconn.Conn)
			io.Copy(c, c)
			fmt.Printf("%+v\n%+v\n", conn.Info(), conn.Stats())
		}(c)
	}
}
