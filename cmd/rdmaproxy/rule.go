package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

const endpointHelp = `LISTEN and DIAL are of these kinds, and at least one of them is rdma:
  rdma://HOST:PORT    RDMA; rdma4 and rdma6: one family of addresses
  tcp://HOST:PORT     TCP; tcp4 and tcp6: one family
  unix:///PATH        a Unix socket
Options follow a ?, joined with &; quote them in a shell:
  device=NAME         rdma: this device alone, such as mlx5_0, software or no-software
  mode=0660           unix, LISTEN: the socket's permissions; without it the umask's
  max=N               LISTEN: carry at most N connections of this rule at once; more wait`

// rule is one -forward: what to accept, and where to carry it.
type rule struct {
	name     string // as it was given
	from, to endpoint
	slots    chan struct{} // one for each connection; nil: no limit of its own
	counters counters

	mu    sync.Mutex
	pairs map[*pair]struct{} // the open connections
}

// endpoint is one side of a rule.
type endpoint struct {
	network string // as for net.Dial, and rdma, rdma4, rdma6
	addr    string
	device  string      // of RDMA; empty: any
	mode    os.FileMode // of a Unix socket; 0: what the umask leaves
	max     int         // connections; 0: no limit
}

func (e endpoint) rdma() bool { return strings.HasPrefix(e.network, "rdma") }

// between finds the = that joins the sides; options have another meaning for it.
var between = regexp.MustCompile(`=(rdma[46]?|tcp[46]?|unix)://`)

// parseRule reads LISTEN=DIAL.
func parseRule(s string) (*rule, error) {
	at := between.FindStringIndex(s)
	if at == nil {
		return nil, errors.New("want LISTEN=DIAL, such as rdma://:6379=tcp://127.0.0.1:6379")
	}
	from, err := parseEndpoint(s[:at[0]], "max", "mode", "device")
	if err != nil {
		return nil, err
	}
	to, err := parseEndpoint(s[at[0]+1:], "device")
	if err != nil {
		return nil, err
	}
	if !from.rdma() && !to.rdma() {
		return nil, errors.New("one side must be rdma://")
	}
	r := &rule{name: s, from: from, to: to, pairs: map[*pair]struct{}{}}
	if from.max > 0 {
		r.slots = make(chan struct{}, from.max)
	}
	return r, nil
}

// parseEndpoint reads SCHEME://ADDRESS?OPTIONS.
func parseEndpoint(s string, options ...string) (endpoint, error) {
	scheme, rest, _ := strings.Cut(s, "://")
	e := endpoint{network: scheme}
	var query string
	e.addr, query, _ = strings.Cut(rest, "?")
	switch scheme {
	case "rdma", "rdma4", "rdma6", "tcp", "tcp4", "tcp6":
		if _, _, err := net.SplitHostPort(e.addr); err != nil {
			return e, fmt.Errorf("%s: %w; want HOST:PORT", s, err)
		}
	case "unix":
		if !strings.HasPrefix(e.addr, "/") {
			return e, fmt.Errorf("%s: want an absolute path, as in unix:///run/name", s)
		}
	default:
		return e, fmt.Errorf("%s: want rdma://, tcp:// or unix:// in front", s)
	}
	for option := range strings.SplitSeq(query, "&") {
		if option == "" {
			continue
		}
		if err := e.set(option, options); err != nil {
			return e, fmt.Errorf("%s: %w", s, err)
		}
	}
	return e, nil
}

// set takes one option, NAME=VALUE.
func (e *endpoint) set(option string, allowed []string) error {
	name, value, _ := strings.Cut(option, "=")
	fits := map[string]bool{"max": true, "mode": e.network == "unix", "device": e.rdma()}[name]
	for _, a := range allowed {
		if a != name || !fits {
			continue
		}
		switch name {
		case "max":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return fmt.Errorf("max must be a number of connections, not %q", value)
			}
			e.max = n
		case "mode":
			n, err := strconv.ParseUint(value, 8, 32)
			if err != nil || n == 0 || n > 0o777 {
				return fmt.Errorf("mode must be octal permissions such as 0660, not %q", value)
			}
			e.mode = os.FileMode(n)
		case "device":
			e.device = value
		}
		return nil
	}
	return fmt.Errorf("no option %q here", name)
}
