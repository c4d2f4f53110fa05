package softiwarp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs/verbstest"
)

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		cfg        Config
	}{
		{"default", "127.0.0.1", Config{}},
		{"default, IPv6", "::1", Config{}},
		{"crc", "::1", Config{CRC: true}},
		{"mss", "127.0.0.1", Config{MaxFPDU: MSS}},
		{"smallest", "::1", Config{MaxFPDU: minFPDU}},
	} {
		c.cfg.Logger = quiet
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := New(c.cfg).(*provider)
			verbstest.Run(t, verbstest.Env{
				Dial: p, Listen: p, Addr: netip.MustParseAddr(c.addr), Loopback: true, Leaks: p.dev.leaks,
			})
		})
	}
}

// TestConformanceHandedIn has the accepting side work on a listener of the user's, whose connections know Read and Write alone: so it
// is on systems other than Linux. The dialing device is another one, as in another process.
func TestConformanceHandedIn(t *testing.T) {
	for name, cfg := range map[string]Config{"default": {}, "crc": {CRC: true}} {
		cfg.Logger = quiet
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := New(cfg).(*provider), New(cfg).(*provider)
			verbstest.Run(t, verbstest.Env{
				Dial: a, Listen: handsIn{b}, Addr: netip.MustParseAddr("127.0.0.1"), Loopback: true,
				Leaks: func() error { return errors.Join(a.dev.leaks(), b.dev.leaks()) },
			})
		})
	}
}

// handsIn is a provider that listens on wrapped connections.
type handsIn struct{ *provider }

func (h handsIn) Listen(local netip.AddrPort, o cm.ListenOptions) (cm.Listener, error) {
	ln, err := net.Listen("tcp", local.String())
	if err != nil {
		return nil, &cm.Error{Op: "listen", Addr: local, Err: reason(context.Background(), err)}
	}
	o.TCP = wrapping{ln}
	return h.provider.Listen(local, o)
}

type wrapping struct{ net.Listener }

func (w wrapping) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return hesitant{c, []int{0}}, nil
}

// hesitant has every other Read return nothing, which an io.Reader may, and cannot be a map's key.
type hesitant struct {
	net.Conn
	reads []int
}

func (h hesitant) Read(b []byte) (int, error) {
	if h.reads[0]++; h.reads[0]%2 == 0 {
		return 0, nil
	}
	return h.Conn.Read(b)
}
