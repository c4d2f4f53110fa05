//go:build guest

package tests

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs/verbstest"
)

func TestRxeConformance(t *testing.T) { testConformance(t) }
func TestSiwConformance(t *testing.T) { testConformance(t) }

func testConformance(t *testing.T) {
	before := base(t)
	verbstest.Run(t, verbstest.Env{
		Dial:          system,
		Listen:        system,
		Addr:          netip.MustParseAddr(addr),
		Nobody:        netip.MustParseAddr(unusedIP),
		Patience:      patience,
		ReadUnchecked: isSiw(),
		ReadUnordered: isSiw(),
		ReadOneWay:    isSiw(),
		Leaks: func() error {
			now := resources(t)
			for _, kind := range []string{"qp", "mr", "cm_id", "cq"} {
				if now[kind] > before[kind] {
					return fmt.Errorf("%d of %s, were %d", now[kind], kind, before[kind])
				}
			}
			time.Sleep(50 * time.Millisecond)
			return nil
		},
	})
}
