package softiwarp

import (
	"net/netip"
	"testing"

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
