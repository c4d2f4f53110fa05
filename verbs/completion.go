package verbs

import "fmt"

// Status is the result of a work request.
type Status uint8

// The results, with the values of ibv_wc_status.
const (
	StatusSuccess Status = iota
	StatusLocLenErr
	StatusLocQPOpErr
	StatusLocEECOpErr
	StatusLocProtErr
	StatusWRFlushErr
	StatusMWBindErr
	StatusBadRespErr
	StatusLocAccessErr
	StatusRemInvReqErr
	StatusRemAccessErr
	StatusRemOpErr
	StatusRetryExcErr
	StatusRNRRetryExcErr
	StatusLocRDDViolErr
	StatusRemInvRDReqErr
	StatusRemAbortErr
	StatusInvEECNErr
	StatusInvEECStateErr
	StatusFatalErr
	StatusRespTimeoutErr
	StatusGeneralErr
)

var statusText = [...]struct{ name, text string }{
	StatusSuccess:        {"SUCCESS", "success"},
	StatusLocLenErr:      {"LOC_LEN_ERR", "message longer than the posted receive or the path allows"},
	StatusLocQPOpErr:     {"LOC_QP_OP_ERR", "local queue pair error"},
	StatusLocEECOpErr:    {"LOC_EEC_OP_ERR", "local EE context error"},
	StatusLocProtErr:     {"LOC_PROT_ERR", "local memory not registered for this (lkey, range or access)"},
	StatusWRFlushErr:     {"WR_FLUSH_ERR", "flushed: the queue pair is in the error state"},
	StatusMWBindErr:      {"MW_BIND_ERR", "memory window bind failed"},
	StatusBadRespErr:     {"BAD_RESP_ERR", "unexpected response from the peer"},
	StatusLocAccessErr:   {"LOC_ACCESS_ERR", "local access denied"},
	StatusRemInvReqErr:   {"REM_INV_REQ_ERR", "the peer's device found the request invalid"},
	StatusRemAccessErr:   {"REM_ACCESS_ERR", "the peer's memory is not registered for this (rkey, range or access)"},
	StatusRemOpErr:       {"REM_OP_ERR", "the peer's device could not complete the request"},
	StatusRetryExcErr:    {"RETRY_EXC_ERR", "no answer from the peer's device"},
	StatusRNRRetryExcErr: {"RNR_RETRY_EXC_ERR", "the peer had no receive posted"},
	StatusLocRDDViolErr:  {"LOC_RDD_VIOL_ERR", "local RD domain violation"},
	StatusRemInvRDReqErr: {"REM_INV_RD_REQ_ERR", "invalid RD request"},
	StatusRemAbortErr:    {"REM_ABORT_ERR", "the peer aborted the operation"},
	StatusInvEECNErr:     {"INV_EECN_ERR", "invalid EE context number"},
	StatusInvEECStateErr: {"INV_EEC_STATE_ERR", "invalid EE context state"},
	StatusFatalErr:       {"FATAL_ERR", "fatal device error"},
	StatusRespTimeoutErr: {"RESP_TIMEOUT_ERR", "response timeout"},
	StatusGeneralErr:     {"GENERAL_ERR", "other error"},
}

// String returns the status's name as rdma-core writes it.
func (s Status) String() string {
	if int(s) < len(statusText) {
		return statusText[s].name
	}
	return fmt.Sprintf("STATUS(%d)", uint8(s))
}

// WCOpcode tells what kind of work request completed. It is defined on success only.
type WCOpcode uint8

// The kinds of completion. Those of the receive queue start at WCRecv.
const (
	WCSend WCOpcode = iota
	WCRDMAWrite
	WCRDMARead
	WCCompSwap
	WCFetchAdd
	WCBindMW
	WCLocalInv
	WCRecv
	WCRecvRDMAWithImm
)

// String returns the name as rdma-core writes it.
func (op WCOpcode) String() string {
	names := [...]string{"SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV", "RECV", "RECV_RDMA_WITH_IMM"}
	if int(op) < len(names) {
		return names[op]
	}
	return fmt.Sprintf("WC_OPCODE(%d)", uint8(op))
}

// WCFlags say which optional fields of a completion hold something.
type WCFlags uint8

// The completion flags.
const (
	WCWithImm WCFlags = 1 << iota // Imm is valid
	WCWithInv                     // InvalidatedRKey is valid
	WCGRH                         // UD: the receive holds a global route header, see GRHSize
)

// Completion is the result of a work request. ID, Status, QPNum and VendorErr are always valid, the rest on success only.
type Completion struct {
	ID        uint64
	Status    Status
	Opcode    WCOpcode
	Flags     WCFlags
	ByteLen   uint32 // receive queue: bytes of the SEND (on UD with GRHSize) or WRITE; READ and atomics: bytes returned
	Imm       uint32 // as a number, see SendWR.Imm
	QPNum     uint32 // the local QP
	VendorErr uint32

	InvalidatedRKey uint32 // of this side's region that OpSendWithInv has made invalid

	// Where a receive of a UD QP came from.
	SrcQPNum    uint32
	SLID        uint16
	SL          uint8
	SrcPathBits uint8 // low bits of this side's LID that were used
}

// Err is nil on success and a *CompletionError otherwise.
func (c *Completion) Err() error {
	if c.Status == StatusSuccess {
		return nil
	}
	return &CompletionError{Status: c.Status, VendorErr: c.VendorErr, QPNum: c.QPNum}
}

// CompletionError is a work request's failure.
type CompletionError struct {
	Status    Status
	VendorErr uint32 // the device's own code, 0 if none
	QPNum     uint32 // the local QP
}

func (e *CompletionError) Error() string {
	text := "unknown status"
	if int(e.Status) < len(statusText) {
		text = statusText[e.Status].text
	}
	s := fmt.Sprintf("rdma completion %v: %s", e.Status, text)
	if e.VendorErr != 0 {
		s += fmt.Sprintf(" (vendor error %#x)", e.VendorErr)
	}
	return s
}

// Is reports whether target is a *CompletionError with the same Status; other fields of target are not compared.
func (e *CompletionError) Is(target error) bool {
	t, ok := target.(*CompletionError)
	return ok && t.Status == e.Status
}
