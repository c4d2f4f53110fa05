package rdmacore

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// basicAccess is what every device has.
const basicAccess = verbs.AccessLocalWrite | remote

var accessFlags = []struct {
	flag verbs.Access
	name string
}{
	{verbs.AccessLocalWrite, "AccessLocalWrite"},
	{verbs.AccessRemoteWrite, "AccessRemoteWrite"},
	{verbs.AccessRemoteRead, "AccessRemoteRead"},
	{verbs.AccessRemoteAtomic, "AccessRemoteAtomic"},
	{verbs.AccessZeroBased, "AccessZeroBased"},
	{verbs.AccessOnDemand, "AccessOnDemand"},
	{verbs.AccessHugeTLB, "AccessHugeTLB"},
	{verbs.AccessRelaxedOrdering, "AccessRelaxedOrdering"},
}

// accessNames is for errors: "AccessOnDemand, AccessHugeTLB".
func accessNames(a verbs.Access) string {
	var names []string
	for _, f := range accessFlags {
		if a&f.flag != 0 {
			names = append(names, f.name)
		}
		a &^= f.flag
	}
	if a != 0 {
		names = append(names, fmt.Sprintf("access flags %#x", a))
	}
	return strings.Join(names, ", ")
}

// checkAccess refuses what no device takes. The kernel would with the same errno as for a flag that the device does not have.
func checkAccess(device string, a verbs.Access) error {
	unknown := a
	for _, f := range accessFlags {
		unknown &^= f.flag
	}
	switch {
	case unknown != 0:
		return &verbs.UnsupportedError{Device: device, What: accessNames(unknown)}
	case a&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && a&verbs.AccessLocalWrite == 0:
		return fmt.Errorf("%w: AccessRemoteWrite and AccessRemoteAtomic need AccessLocalWrite", syscall.EINVAL)
	}
	return nil
}

func errUnaligned(addr, page uint64) error {
	return fmt.Errorf("%w: AccessZeroBased for memory at %#x: it must begin at a page of %d bytes, as that of AllocMR or mmap does",
		syscall.EINVAL, addr, page)
}
