package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/rconn/rdma/rconn"
)

// open lists the connections of a rule, oldest first.
func (r *rule) open() []*pair {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pairs []*pair
	for c := range r.pairs {
		pairs = append(pairs, c)
	}
	slices.SortFunc(pairs, func(a, b *pair) int { return a.start.Compare(b.start) })
	return pairs
}

// writePage writes what a person wants to know: rules, open connections, and what RDMA does for them.
func (p *proxy) writePage(w io.Writer) {
	fmt.Fprintf(w, "rdmaproxy, up %v, %d of at most %d connections", time.Since(p.start).Round(time.Second), len(p.slots),
		p.cfg.maxConns)
	if p.stop.Err() != nil {
		fmt.Fprint(w, ", STOPPING")
	}
	fmt.Fprint(w, "\nnumbers for Prometheus: /metrics\n")
	for _, r := range p.cfg.rules {
		c := &r.counters
		pairs := r.open()
		fmt.Fprintf(w, "\n%s\n  %d open, %d waiting, %d accepted, %d without a backend, %d bytes to the backend, %d to the client\n",
			r.name, len(pairs), c.waiting.Load(), c.accepted.Load(), c.failed.Load(), c.up.Load(), c.down.Load())
		for k := range kinds {
			if n := c.errors[k].Load(); n > 0 {
				fmt.Fprintf(w, "  errors: %d %v\n", n, k)
			}
		}
		if len(pairs) == 0 {
			continue
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(t, "  CLIENT\tBACKEND\tAGE\tIDLE\tUP\tDOWN\tDEVICE\tTRANSPORT\tQP\tRINGS\tCREDITS\tSTALLS\tMESSAGES\tWAITS\n")
		for _, c := range pairs {
			fmt.Fprintf(t, "  %s\t%s\t%s%s\n", name(c.client.conn), name(c.backend.conn), c.age(), rdmaColumns(c))
		}
		t.Flush()
	}
}

// name is the address of a peer; those of Unix sockets often have none, or one that a client made up.
func name(c conn) string {
	a := c.RemoteAddr()
	if a == nil || a.String() == "" || a.String() == "@" {
		a = c.LocalAddr()
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, a.String())
}

// age is for how long the pair has been there and has been quiet, and what it carried.
func (p *pair) age() string {
	age := time.Since(p.start)
	return fmt.Sprintf("%v\t%v\t%d\t%d", age.Round(time.Millisecond), (age - time.Duration(p.last.Load())).Round(time.Millisecond),
		p.up.Load(), p.down.Load())
}

// rdmaColumns tells about the connection of RDMA; where both are, about the one to the backend.
func rdmaColumns(p *pair) string {
	c, ok := p.backend.conn.(*rconn.Conn)
	if !ok {
		c = p.client.conn.(*rconn.Conn)
	}
	i, s := c.Info(), c.Stats()
	return fmt.Sprintf("\t%s\t%v\t%d\t%d+%d\t%d/%d\t%d\t%d/%d\t%d", i.Device, i.Transport, i.QPNum, i.SendBuffer, i.RecvBuffer,
		i.Credits, i.PeerCredits, s.WriteStalls, s.DataSent, s.DataReceived, s.Waits)
}
