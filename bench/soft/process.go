package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"

	"github.com/rconn/rdma/rconn"
)

// process is the other process, which serves one transport.
type process struct {
	transport string
	addr      string
	cmd       *exec.Cmd
	stdin     io.Closer
}

// start runs this program again as the other process.
func start(transport string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-peer", transport)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{transport: transport, cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("the other process for %s: %w", transport, err)
	}
	p.addr = strings.TrimSpace(line)
	return p, nil
}

func (p *process) stop() {
	p.stdin.Close()
	_ = p.cmd.Wait()
}

func (p *process) dial() (net.Conn, error) {
	if p.transport == "tcp" {
		return net.Dial("tcp", p.addr)
	}
	d := rconn.Dialer{Config: rconn.Config{Device: p.transport}}
	return d.Dial("tcp", p.addr)
}

// serve answers connections until the standard input ends.
func serve(transport string) error {
	const addr = "127.0.0.1:0"
	var ln net.Listener
	var err error
	if transport == "tcp" {
		ln, err = net.Listen("tcp", addr)
	} else {
		lc := rconn.ListenConfig{Config: rconn.Config{Device: transport}}
		ln, err = lc.Listen(context.Background(), "tcp", addr)
	}
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := answer(c); err != nil {
				fmt.Fprintf(os.Stderr, "%v: %v\n", c.RemoteAddr(), err)
			}
		}()
	}
}
