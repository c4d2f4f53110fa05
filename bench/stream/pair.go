package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// process is a worker, seen from the one that measures.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	to    *json.Encoder
	from  *json.Decoder
}

func startWorker(ctx context.Context) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self, "-worker")}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.to, p.from = json.NewEncoder(p.stdin), json.NewDecoder(stdout)
	return p, p.cmd.Start()
}

func (p *process) stop() {
	p.stdin.Close()
	_ = p.cmd.Wait()
}

// patience is how long an answer may take. What takes longer hangs.
const patience = 3 * time.Minute

func (p *process) call(q request) (reply, error) {
	watchdog := time.AfterFunc(patience, p.kill)
	defer watchdog.Stop()
	var r reply
	err := p.to.Encode(q)
	if err == nil {
		err = p.from.Decode(&r)
	}
	if err == nil && r.Err != "" {
		err = errors.New(r.Err)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", q.Op, err)
	}
	return r, nil
}

// pair is the two processes.
type pair struct {
	server, client *process
	infos          map[string]bool // what connections were like
}

func startPair(ctx context.Context) (pair, error) {
	server, err := startWorker(ctx)
	if err != nil {
		return pair{}, err
	}
	client, err := startWorker(ctx)
	if err != nil {
		server.stop()
		return pair{}, err
	}
	return pair{server, client, map[string]bool{}}, nil
}

// kill ends both, whatever they do.
func (p pair) kill() {
	p.client.kill()
	p.server.kill()
	p.stop()
}

func (p pair) stop() {
	p.client.stop()
	p.server.stop()
}

// open makes the connections of a task.
func (p pair) open(tr transport, t task) (addr string, err error) {
	q := request{Op: "serve", Transport: tr, Task: t}
	r, err := p.server.call(q)
	if err != nil {
		return "", err
	}
	if t.Kind == connects || t.Kind == requests {
		return r.Addr, nil
	}
	q.Op, q.Addr = "open", r.Addr
	opened, err := p.client.call(q)
	if opened.Info != "" {
		p.infos[opened.Info] = true
	}
	return r.Addr, err
}

func (p pair) close() error {
	_, err1 := p.client.call(request{Op: "close"})
	_, err2 := p.server.call(request{Op: "close"})
	return errors.Join(err1, err2)
}

// usages are those of both processes, the client's first.
func (p pair) usages() ([2]usage, error) {
	c, err1 := p.client.call(request{Op: "usage"})
	s, err2 := p.server.call(request{Op: "usage"})
	return [2]usage{c.Usage, s.Usage}, errors.Join(err1, err2)
}

// run does a task once.
func (p pair) run(tr transport, t task) (sample, error) {
	addr, err := p.open(tr, t)
	if err != nil {
		return sample{}, err
	}
	s, err := p.measure(tr, addr, t)
	if err != nil {
		return sample{}, err
	}
	return s, p.close()
}

// measure does a task on open connections.
func (p pair) measure(tr transport, addr string, t task) (sample, error) {
	first, err := p.usages()
	if err != nil {
		return sample{}, err
	}
	before, err := p.usages()
	if err != nil {
		return sample{}, err
	}
	r, err := p.client.call(request{Op: "run", Transport: tr, Addr: addr, Task: t})
	if err != nil {
		return sample{}, err
	}
	after, err := p.usages()
	if err != nil {
		return sample{}, err
	}
	var cpu time.Duration
	var mallocs, parks, posted uint64
	for i := range after {
		cpu += after[i].CPU - before[i].CPUAfter
		mallocs += after[i].Mallocs - before[i].Mallocs
		mallocs -= min(mallocs, before[i].Mallocs-first[i].Mallocs) // what asking for the usage allocates
		parks += after[i].Parks - before[i].Parks
		posted += after[i].Messages - before[i].Messages
	}
	s := t.sample(r.Took, cpu)
	s.setTimes(r.Times)
	messages := float64(t.messages())
	s.Numbers[nAllocs] = float64(mallocs) / messages
	if (tr.Kind == onDevice || tr.Kind == onSoftware) && t.Kind != connects && t.Kind != requests {
		s.Numbers[nParks] = float64(parks) / messages
		s.Numbers[nPosted] = float64(posted) / messages
	}
	if t.Kind == share {
		s.Numbers[nUneven] = r.Uneven
	}
	return s, nil
}

func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
	}
}
