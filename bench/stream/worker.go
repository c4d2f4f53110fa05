package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/rconn/rdma/rconn"
)

// The two processes of a measurement are workers: they get requests on their standard input, one JSON value each, and answer each
// on their standard output. One serves, the other opens connections and does the work.

// request is what a worker shall do.
type request struct {
	Op        string // serve, open, run, usage, close
	Transport transport
	Addr      string // to connect to
	Task      task
}

// reply is a worker's answer.
type reply struct {
	Err   string
	Addr  string // where it listens
	Info  string // what its connections are like
	Took  time.Duration
	Times []float64 // quantiles of the time of one operation, in µs

	Uneven float64 // largest difference of a connection from an equal share, as a part of it

	Usage usage
}

// usage is what a process has used up to now.
type usage struct {
	CPU      time.Duration // when this was asked for
	CPUAfter time.Duration // when it was answered
	Mallocs  uint64
	Parks    uint64 // times a call slept for completions
	Messages uint64 // that carried data, sent by rconn
	Threads  int
	FDs      int
	Pinned   int // bytes of memory pinned for devices
	Resident int // bytes
}

// worker is the state of such a process.
type worker struct {
	ln    net.Listener
	wg    sync.WaitGroup // what serves
	mu    sync.Mutex
	err   error // the first, of what serves
	conns []net.Conn
}

// work answers requests until the input ends.
func work(in io.Reader, out io.Writer) error {
	slog.SetLogLoggerLevel(slog.LevelWarn)
	var w worker
	from, to := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q request
		if err := from.Decode(&q); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		r, err := w.do(q)
		if err != nil {
			r.Err = err.Error()
		}
		if err := to.Encode(r); err != nil {
			return err
		}
	}
}

func (w *worker) do(q request) (r reply, err error) {
	switch q.Op {
	case "serve":
		if w.ln, err = q.Transport.listen(); err != nil {
			return r, err
		}
		r.Addr = w.ln.Addr().String()
		w.wg.Go(func() { w.serve(q.Task) })
	case "open":
		err = w.open(q)
		r.Info = w.info()
	case "run":
		r, err = w.run(q)
	case "usage":
		r.Usage = w.usage()
	case "close":
		err = w.close()
	default:
		err = fmt.Errorf("unknown request %q", q.Op)
	}
	return r, err
}

// open makes the connections of a task, a few at a time.
func (w *worker) open(q request) error {
	conns := make([]net.Conn, q.Task.Conns)
	var wg sync.WaitGroup
	const atOnce = 4
	for k := range atOnce {
		wg.Go(func() {
			for i := k; i < len(conns); i += atOnce {
				c, err := q.Transport.dial(q.Addr)
				if err != nil {
					w.fail(err)
					return
				}
				conns[i] = c
				w.add(c)
			}
		})
	}
	wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// info tells the settings of rconn's connections, which the zero Config leaves to it.
func (w *worker) info() string {
	for _, c := range w.conns {
		if c, ok := c.(*rconn.Conn); ok {
			i := c.Info()
			return fmt.Sprintf("rconn on %s (%v): rings of %s to send and %s to receive, %d credits",
				i.Device, i.Transport, bytesText(i.SendBuffer), bytesText(i.RecvBuffer), i.Credits)
		}
	}
	return ""
}

func (w *worker) add(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
}

func (w *worker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

// close ends all connections, and waits until what serves has ended.
func (w *worker) close() error {
	if w.ln != nil {
		_ = w.ln.Close()
		w.wg.Wait()
	}
	for _, c := range w.conns {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			w.fail(err)
		}
	}
	err := w.err
	*w = worker{}
	return err
}

func (w *worker) usage() usage {
	u := usage{CPU: cpuTime()}
	u.addProcess()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Mallocs = m.Mallocs
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		if c, ok := c.(*rconn.Conn); ok {
			s := c.Stats()
			u.Parks += s.Parks
			u.Messages += s.DataSent
		}
	}
	u.CPUAfter = cpuTime()
	return u
}
