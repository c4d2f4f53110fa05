package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// process is the other process, seen from the one that measures.
type process struct {
	addr  netip.AddrPort
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Reader
}

// start runs this program again as the other process.
func start(local netip.Addr, spin time.Duration) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self, "-peer", "-addr", local.String(), "-spin", spin.String())}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.lines = bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := p.lines.ReadString('\n')
	if err == nil {
		p.addr, err = netip.ParseAddrPort(strings.TrimSpace(line))
	}
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("the other process: %w", err)
	}
	return p, nil
}

func (p *process) address() netip.AddrPort { return p.addr }

func (p *process) used() (time.Duration, error) {
	line, err := p.lines.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the other process: %w", err)
	}
	return time.ParseDuration(strings.TrimSpace(line))
}

func (p *process) stop() {
	p.stdin.Close()
	_ = p.cmd.Wait()
}

// peerProcess is the other process: it prints its address, then a line for each connection, until the standard input ends.
func peerProcess(local netip.AddrPort, spin time.Duration) error {
	ln, err := listen(local)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	fmt.Println(ln.Addr())
	err = serve(ctx, ln, spin, func(used time.Duration) { fmt.Println(used) })
	if errors.Is(err, context.Canceled) {
		return ln.Close()
	}
	return err
}

// serve answers one connection after the other, and tells the processor time that each took.
func serve(ctx context.Context, ln cm.Listener, spin time.Duration, done func(time.Duration)) error {
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		used, err := answerOne(ctx, req, spin)
		if err != nil {
			return err
		}
		done(used)
	}
}

func answerOne(ctx context.Context, req cm.Request, spin time.Duration) (time.Duration, error) {
	q, err := parseRequest(req.Param().PrivateData)
	if err != nil {
		return 0, errors.Join(err, req.Reject(nil), req.Close())
	}
	s, err := newSide(req, q, spin)
	if err != nil {
		return 0, err
	}
	defer s.close()
	if err := s.setPeer(req.Param().PrivateData); err != nil {
		return 0, err
	}
	if err := req.Accept(ctx, s.param()); err != nil {
		return 0, err
	}
	before := cpuTime()
	err = s.serve()
	if !errors.Is(err, errGone) {
		return 0, err
	}
	return cpuTime() - before, nil
}

// serve does what was asked for until the connection ends.
func (s *side) serve() error {
	var answered int
	for {
		if err := s.until(func() bool { return s.received > answered }); err != nil {
			return err
		}
		for ; answered < s.received; answered++ {
			if s.kind == echo || s.kind == answer {
				if err := s.postUnwatched(s.wr(s.op)); err != nil {
					return err
				}
			}
			if s.kind == sink && (answered+1)%(s.depth/4) == 0 {
				if err := errors.Join(s.refill(), s.postUnwatched(s.short(verbs.OpSend))); err != nil {
					return err
				}
			}
		}
		if s.kind != sink {
			if err := s.refill(); err != nil {
				return err
			}
		}
	}
}
