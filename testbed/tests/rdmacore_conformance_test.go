//go:build guest

package tests

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/rconn/rdma/verbs/verbstest"
)

func TestRxeConformance(t *testing.T) { testConformance(t) }
func TestSiwConformance(t *testing.T) { testConformance(t) }

func testConformance(t *testing.T) {
	base(t) // what librdmacm and the provider keep is there
	before := objects(t)
	verbstest.Run(t, verbstest.Env{
		Dial:          system,
		Listen:        system,
		Addr:          netip.MustParseAddr(addr),
		Nobody:        netip.MustParseAddr(unusedIP),
		Patience:      patience,
		ReadUnchecked: isSiw(),
		ReadUnordered: isSiw(),
		ReadOneWay:    isSiw(),
		SRQLimitLate:  true,
		SRQLimitStays: isSiw(),
		SQDWaits:      !isSiw(),
		SolicitedAll:  isSiw(),

		SolicitedSendSilent: !isSiw(),
		Leaks: func() error {
			for kind, n := range objects(t) {
				if n > before[kind] {
					return fmt.Errorf("%d of %s, were %d", n, kind, before[kind])
				}
			}
			return nil
		},
	})
}

// objects counts what all programs and the kernel have of each kind. One call of rdma, since the suite asks often.
func objects(t *testing.T) map[string]int {
	t.Helper()
	var devices []struct{ PD, CQ, QP, CM_ID, MR, SRQ int }
	if err := json.Unmarshal([]byte(run(t, "rdma", "-j", "resource", "show")), &devices); err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	for _, d := range devices {
		for kind, n := range map[string]int{"pd": d.PD, "cq": d.CQ, "qp": d.QP, "cm_id": d.CM_ID, "mr": d.MR, "srq": d.SRQ} {
			count[kind] += n
		}
	}
	return count
}
