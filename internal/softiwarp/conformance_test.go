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
	for name, cfg := range map[string]Config{
		"default":  {},
		"crc":      {CRC: true},
		"mss":      {MaxFPDU: MSS},
		"smallest": {MaxFPDU: minFPDU},
	} {
		cfg.Logger = quiet
		for _, addr := range []string{"127.0.0.1", "::1"} {
			t.Run(name+" "+addr, func(t *testing.T) {
				t.Parallel()
				p := New(cfg).(*provider)
				verbstest.Run(t, verbstest.Env{
					Dial: p, Listen: p, Addr: netip.MustParseAddr(addr), Loopback: true, Leaks: p.dev.leaks,
				})
			})
		}
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
