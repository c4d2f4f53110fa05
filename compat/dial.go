package compat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs"
)

// Dialer makes connections, as net.Dialer does. The zero value is usable. It may be used by several goroutines, and must not be copied
// after first use.
type Dialer struct {
	// Policy says what may be used.
	Policy Policy

	// Timeout limits a dial as a whole. 0: no limit but the context's and those of RDMA and TCP.
	Timeout time.Duration

	// FallbackDelay is how long the last way before it has to connect until plain TCP is tried beside it; when that fails, TCP's turn is at
	// once. 0: 250 ms. Negative: TCP has to wait. Between RDMA and the software device RDMA.FallbackDelay is the same.
	//
	// A peer needs two round trips to connect by the software device and one by TCP, so where a round trip takes longer than this, TCP wins.
	FallbackDelay time.Duration

	// Memory is how long a way that led nowhere is not tried again at the same network and address while another one does lead there. 0:
	// 1 minute. Negative: each dial tries all. At most 4096 such ways are remembered.
	//
	// It holds for definite answers: no device, no route, nobody listens at RDMA, another protocol. A way without an answer in time,
	// that was refused by a program, or that broke, may work the next time: it is left out for 5 s, and for twice as long each time in
	// a row, up to Memory.
	Memory time.Duration

	// RDMA shapes the connections of RDMA and the software device, and has the logger.
	RDMA rconn.Dialer

	// TCP shapes plain TCP connections. Its Resolver looks names up for all ways.
	TCP net.Dialer

	memory memory
}

const (
	defaultFallbackDelay = 250 * time.Millisecond // RFC 6555, section 5
	defaultMemory        = time.Minute
)

// standard is what Dial and DialTimeout use.
var standard Dialer

// Dial connects to address on the network, see Dialer.DialContext. All its dials share one memory of what leads where.
func Dial(network, address string) (net.Conn, error) { return standard.Dial(network, address) }

// DialTimeout is Dial with a limit, as in package net.
func DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	return standard.DialTimeout(network, address, timeout)
}

// Dial is DialContext with no context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialTimeout is Dial with a limit. With Dial it is what some libraries take for a dialer, lib/pq for one.
func (d *Dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx := context.Background()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return d.DialContext(ctx, network, address)
}

// DialAddr is DialContext for libraries that name no network, such as gRPC and go-sql-driver/mysql. An address as gRPC has it for a Unix
// socket ("unix:path", "unix:///path", "unix:@name" or a zero byte and a name) is dialed as package net does.
func (d *Dialer) DialAddr(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	path, isPath := strings.CutPrefix(address, "unix:")
	switch {
	case isPath:
		network, address = "unix", strings.TrimPrefix(path, "//")
	case strings.HasPrefix(address, "\x00"):
		network = "unix"
	}
	return d.DialContext(ctx, network, address)
}

// DialContext connects to address, "host:port", on the network: "tcp", "tcp4", "tcp6" or the same with "rdma". The connection does not depend
// on ctx once it is made. The net.Conn is a *rconn.Conn or a *net.TCPConn. Other networks, such as "unix", are package net's under
// every policy.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if !isStream(network) {
		return d.TCP.DialContext(ctx, network, address)
	}
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	if d.Policy == TCPOnly {
		return d.TCP.DialContext(ctx, plain(network), address)
	}
	to, err := d.resolve(ctx, network, address)
	if err != nil {
		return nil, opError("dial", network, nil, err)
	}
	ways, vain := d.order(network, address, d.ways(network, to))
	if len(ways) == 0 {
		return nil, opError("dial", network, nil, verbs.ErrNoDevice)
	}
	c, won, outcomes := race(ctx, ways)
	news := d.learn(network, address, ways, won, outcomes)
	d.report(news, network, address, c, ways, vain, won, outcomes)
	if c == nil {
		return nil, failure(ctx, network, ways, outcomes)
	}
	return c, nil
}

// resolve looks a name up, once for all ways if it has one address. With several each way chooses by its own rules.
func (d *Dialer) resolve(ctx context.Context, network, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return address, nil
	}
	resolver := d.TCP.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	ips, err := resolver.LookupNetIP(ctx, "ip"+strings.TrimPrefix(plain(network), "tcp"), host)
	if err != nil {
		return "", err
	}
	if len(ips) == 1 {
		return net.JoinHostPort(ips[0].Unmap().String(), port), nil
	}
	return address, nil
}

// ways are the ways to an address, the best first.
func (d *Dialer) ways(network, address string) []way {
	providers := d.RDMA.Providers
	if providers == nil {
		providers = rdma.Providers()
	}
	var ways []way
	for _, p := range providers {
		rd := d.RDMA
		rd.Providers = []cm.Provider{p}
		if rd.Resolver == nil {
			rd.Resolver = d.TCP.Resolver
		}
		ways = append(ways, way{p.Name(), orDefault(rd.FallbackDelay, defaultFallbackDelay), func(ctx context.Context) (net.Conn, error) {
			return rd.DialContext(ctx, network, address)
		}})
	}
	if d.Policy == Require {
		return ways
	}
	if len(ways) > 0 {
		ways[len(ways)-1].patience = orDefault(d.FallbackDelay, defaultFallbackDelay)
	}
	return append(ways, way{wayTCP, -1, func(ctx context.Context) (net.Conn, error) {
		return d.TCP.DialContext(ctx, plain(network), address)
	}})
}

const wayTCP = "tcp"

// orDefault is v, or d where v is 0.
func orDefault(v, d time.Duration) time.Duration {
	if v == 0 {
		return d
	}
	return v
}

// order puts the ways that were in vain lately behind the others; they are tried when all those have failed.
func (d *Dialer) order(network, address string, ways []way) (ordered []way, vain int) {
	var last []way
	for _, w := range ways {
		if d.memory.vain(attempt{plain(network), address, w.name}) {
			last = append(last, w)
		} else {
			ordered = append(ordered, w)
		}
	}
	if len(ordered) > 0 && len(last) > 0 {
		ordered[len(ordered)-1].patience = -1
	}
	return append(ordered, last...), len(last)
}

// learn remembers which ways were in vain, and tells whether that is new.
func (d *Dialer) learn(network, address string, ways []way, won int, outcomes []outcome) (news bool) {
	if won < 0 {
		return false
	}
	network = plain(network)
	d.memory.forget(attempt{network, address, ways[won].name})
	for i, w := range ways[:won] {
		if w.name != wayTCP {
			d.memory.note(attempt{network, address, w.name}, outcomes[i].err, orDefault(d.Memory, defaultMemory))
			news = true
		}
	}
	return news
}

// failure is the error when all ways failed: plain TCP's. If that was not tried it is the context's, else the first that is more than the
// lack of a device.
func failure(ctx context.Context, network string, ways []way, outcomes []outcome) error {
	i := mainFailure(ways, outcomes)
	main := outcomes[i].err
	if ways[i].name != wayTCP && ctx.Err() != nil {
		main = opError("dial", network, nil, ctx.Err())
	}
	var others []string
	for i, o := range outcomes {
		if o.ended && tells(o.err, main) {
			others = append(others, fmt.Sprintf("%s: %v", ways[i].name, o))
		}
	}
	var op *net.OpError
	if len(others) == 0 || !errors.As(main, &op) {
		return opError("dial", network, nil, main)
	}
	return &net.OpError{Op: op.Op, Net: op.Net, Source: op.Source, Addr: op.Addr, Err: &failed{op.Err, others}}
}

func mainFailure(ways []way, outcomes []outcome) int {
	main := 0
	for i, o := range outcomes {
		switch {
		case !o.ended:
		case ways[i].name == wayTCP:
			return i
		case errors.Is(outcomes[main].err, verbs.ErrNoDevice) && !errors.Is(o.err, verbs.ErrNoDevice):
			main = i
		}
	}
	return main
}

// tells whether an error says more than the main one.
func tells(err, main error) bool {
	for _, known := range []error{verbs.ErrNoDevice, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return false
		}
	}
	return err != main && !(errors.Is(err, syscall.ECONNREFUSED) && errors.Is(main, syscall.ECONNREFUSED))
}

// failed is one way's error with those of the others for the reader.
type failed struct {
	err    error
	others []string
}

func (e *failed) Error() string {
	return fmt.Sprintf("%v (%s)", e.err, strings.Join(e.others, "; "))
}

func (e *failed) Unwrap() error { return e.err }

// Timeout is for net.OpError, which does not unwrap.
func (e *failed) Timeout() bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](e.err)
	return ok && t.Timeout()
}
