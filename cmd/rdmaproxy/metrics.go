package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// kind is a kind of error, as counted.
type kind int

const (
	kindAccept  kind = iota // the listener could not accept
	kindDial                // the backend could not be dialed
	kindReset               // a peer broke the connection
	kindTimeout             // a peer was found dead
	kindIdle                // nothing was carried for as long as -idle
	kindStopped             // the process stopped
	kindOther
	kinds
)

func (k kind) String() string {
	return [...]string{"accept", "dial", "reset", "timeout", "idle", "stopped", "other"}[k]
}

// kindOf tells what kind of error ended a pair.
func kindOf(err error) kind {
	var nerr net.Error
	switch {
	case err == errIdle:
		return kindIdle
	case err == errStopped:
		return kindStopped
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNABORTED):
		return kindReset
	case errors.As(err, &nerr) && nerr.Timeout():
		return kindTimeout
	}
	return kindOther
}

// counters are those of a rule.
type counters struct {
	accepted, failed atomic.Int64 // connections
	waiting          atomic.Int64 // for a place below the limits, now
	up, down         atomic.Int64 // bytes
	errors           [kinds]atomic.Int64
}

// serveMetrics serves the metrics, and the page if it is wanted; Close ends that.
func (p *proxy) serveMetrics() (io.Closer, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		p.writeMetrics(w)
	})
	if p.cfg.page {
		mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			p.writePage(w)
		})
	}
	srv := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	if p.cfg.metrics == "" {
		return srv, nil
	}
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", p.cfg.metrics)
	if err != nil {
		return nil, err
	}
	p.cfg.log.Info("metrics", "address", ln.Addr().String())
	go func() {
		if err := srv.Serve(ln); err != http.ErrServerClosed {
			p.cfg.log.Warn("metrics", "err", err)
		}
	}()
	return srv, nil
}

// metric is one of the numbers of a rule.
type metric struct {
	name, kind, help string
	values           func(r *rule) []value
}

type value struct {
	label string // besides that of the rule
	n     int64
}

func one(n func(r *rule) int64) func(*rule) []value {
	return func(r *rule) []value { return []value{{n: n(r)}} }
}

var metrics = []metric{
	{"connections_open", "gauge", "Connections that are being carried.",
		one(func(r *rule) int64 { return int64(len(r.open())) })},
	{"connections_waiting", "gauge", "Accepted connections that wait for a place below -max-conns or max.",
		one(func(r *rule) int64 { return r.counters.waiting.Load() })},
	{"connections_total", "counter", "Connections that were accepted.",
		one(func(r *rule) int64 { return r.counters.accepted.Load() })},
	{"connections_failed_total", "counter", "Connections that were reset because the backend could not be dialed.",
		one(func(r *rule) int64 { return r.counters.failed.Load() })},
	{"bytes_total", "counter", "Bytes that were carried, to the backend or to the client.", func(r *rule) []value {
		return []value{{`,to="backend"`, r.counters.up.Load()}, {`,to="client"`, r.counters.down.Load()}}
	}},
	{"errors_total", "counter", "What went wrong, by kind.", func(r *rule) []value {
		var vs []value
		for k := range kinds {
			vs = append(vs, value{fmt.Sprintf(",kind=%q", k), r.counters.errors[k].Load()})
		}
		return vs
	}},
}

// escape makes a label's value of a string, for the text format of Prometheus.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// writeMetrics writes all numbers in the text format of Prometheus.
func (p *proxy) writeMetrics(w io.Writer) {
	single := func(name, help string, n int64) {
		fmt.Fprintf(w, "# HELP rdmaproxy_%[1]s %[2]s\n# TYPE rdmaproxy_%[1]s gauge\nrdmaproxy_%[1]s %[3]d\n", name, help, n)
	}
	for _, m := range metrics {
		fmt.Fprintf(w, "# HELP rdmaproxy_%[1]s %[2]s\n# TYPE rdmaproxy_%[1]s %[3]s\n", m.name, m.help, m.kind)
		for _, r := range p.cfg.rules {
			for _, v := range m.values(r) {
				fmt.Fprintf(w, "rdmaproxy_%s{rule=\"%s\"%s} %d\n", m.name, escape.Replace(r.name), v.label, v.n)
			}
		}
	}
	single("connections_max", "The limit -max-conns.", int64(p.cfg.maxConns))
	single("stopping", "1 after a signal, while connections end.", stopping(p.stop))
	single("start_time_seconds", "When the process started, in seconds since 1970.", p.start.Unix())
	single("goroutines", "Goroutines of the process.", int64(runtime.NumGoroutine()))
}

func stopping(ctx context.Context) int64 {
	if ctx.Err() != nil {
		return 1
	}
	return 0
}
