//go:build linux && cgo

package rdmacore

/*
#cgo LDFLAGS: -ldl
#include "shim.h"
*/
import "C"

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// loadLibrary finds rdma-core's functions, once.
var loadLibrary = sync.OnceValue(func() error {
	var text [256]C.char
	switch C.rc_load(&text[0], C.size_t(len(text))) {
	case 0:
		return nil
	case C.RC_NO_HEADERS:
		// Go's build cache does not know of headers that a file looks for with __has_include.
		return noDevice("this program was built without the headers of rdma-core; install libibverbs-dev and librdmacm-dev " +
			"(Debian, Ubuntu) or rdma-core-devel, run \"go clean -cache\" (the build cache does not notice C headers) and build " +
			"again, or build with -a")
	}
	return noDevice("%s; install or update libibverbs1, librdmacm1 and ibverbs-providers (Debian, Ubuntu) or rdma-core",
		C.GoString(&text[0]))
})

const (
	sysDevices = "/sys/class/infiniband"
	devCM      = "/dev/infiniband/rdma_cm"
	devVerbs   = "/dev/infiniband/uverbs*"
)

// For faccessat, as in fcntl.h and unistd.h.
const (
	atFdcwd   = -100
	atEaccess = 0x200
	readWrite = 6
)

// ready says whether devices can be used, in terms of what to do. It looks before librdmacm does, whose errors say less.
func ready() error {
	if err := loadLibrary(); err != nil {
		return err
	}
	list, err := os.ReadDir(sysDevices)
	switch {
	case exhausted(err):
		return err
	case len(list) == 0:
		return noDevice("the kernel has none; load the driver of the RDMA card, or make one in software " +
			"(rdma link add rxe0 type rxe netdev eth0)")
	}
	f, err := os.OpenFile(devCM, os.O_RDWR, 0)
	if err != nil {
		return openErr(err, "rdma_ucm")
	}
	f.Close()
	nodes, _ := filepath.Glob(devVerbs)
	if len(nodes) == 0 {
		return openErr(&fs.PathError{Op: "open", Path: devVerbs, Err: syscall.ENOENT}, "ib_uverbs")
	}
	for _, node := range nodes { // librdmacm opens all or none
		if err := syscall.Faccessat(atFdcwd, node, readWrite, atEaccess); err == syscall.EACCES {
			return openErr(&fs.PathError{Op: "open", Path: node, Err: err}, "ib_uverbs")
		}
	}
	return nil
}

// The shim writes completions into Go's slices and reads scatter/gather lists as they are: the layouts must agree.
var (
	_ [C.sizeof_struct_rc_wc]byte  = [unsafe.Sizeof(verbs.Completion{})]byte{}
	_ [C.sizeof_struct_rc_sge]byte = [unsafe.Sizeof(verbs.SGE{})]byte{}

	_ = [1]byte{}[unsafe.Offsetof(verbs.Completion{}.ByteLen)-unsafe.Offsetof(C.struct_rc_wc{}.byte_len)]
	_ = [1]byte{}[unsafe.Offsetof(verbs.Completion{}.Imm)-unsafe.Offsetof(C.struct_rc_wc{}.imm)]
	_ = [1]byte{}[unsafe.Offsetof(verbs.Completion{}.QPNum)-unsafe.Offsetof(C.struct_rc_wc{}.qp_num)]
	_ = [1]byte{}[unsafe.Offsetof(verbs.Completion{}.VendorErr)-unsafe.Offsetof(C.struct_rc_wc{}.vendor_err)]
	_ = [1]byte{}[unsafe.Offsetof(verbs.Completion{}.InvalidatedRKey)-unsafe.Offsetof(C.struct_rc_wc{}.inv_rkey)]
	_ = [1]byte{}[unsafe.Offsetof(verbs.Completion{}.Flags)-unsafe.Offsetof(C.struct_rc_wc{}.flags)]
	_ = [1]byte{}[unsafe.Offsetof(verbs.SGE{}.LKey)-unsafe.Offsetof(C.struct_rc_sge{}.lkey)]
)
