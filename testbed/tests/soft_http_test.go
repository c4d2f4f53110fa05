//go:build guest

package tests

import (
	"testing"

	"github.com/rconn/rdma/internal/softiwarp"
)

// curl on siw, by librspreload, and net/http on the software device.
//
// fault: FLOW-5
func TestSiwSoftCurl(t *testing.T) {
	dev := soft(t, softiwarp.Config{})
	for _, host := range []string{addr, addr6} {
		t.Run(host, func(t *testing.T) { testCurl(t, serveSite(t, 16<<20, dev.listen(t, join(host, 0)))) })
	}
}
