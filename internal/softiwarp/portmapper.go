package softiwarp

import (
	"log/slog"
	"net"
	"sync"
)

// portMapper answers the iWARP port mapper of other hosts (iwpmd, of rdma-core) while there are listeners. A host on which that runs asks
// the peer, by UDP, before each connection to which TCP port it shall connect, and waits 10 s for an answer. Ours is always that
// there is no mapping.
type portMapper struct {
	log   *slog.Logger
	mu    sync.Mutex
	users int
	conn  *net.UDPConn // nil: the port was taken, by an iwpmd of this host or another program of ours
}

const (
	mapperPort    = 3935 // IANA: iwpm
	mapperMessage = 48   // bytes that matter
	mapperType    = 0x30 // of the first byte
	mapperRequest = 0x00
	mapperReject  = 0x30
)

func (m *portMapper) start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users++; m.users > 1 {
		return
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: mapperPort})
	if err != nil {
		m.log.Info("iwarp port mapper does not run here", "err", err)
		return
	}
	m.conn = conn
	go serveMapper(conn)
}

func (m *portMapper) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users == 0 && m.conn != nil {
		_ = m.conn.Close()
		m.conn = nil
	}
}

func serveMapper(conn net.PacketConn) {
	var b [1500]byte
	for {
		n, from, err := conn.ReadFrom(b[:])
		if err != nil {
			return
		}
		if answer := mapperAnswer(b[:n]); answer != nil {
			_, _ = conn.WriteTo(answer, from)
		}
	}
}

// mapperAnswer turns a request into its answer; nil if it is none.
func mapperAnswer(b []byte) []byte {
	if len(b) < mapperMessage || b[0]&mapperType != mapperRequest {
		return nil
	}
	b[0] |= mapperReject
	return b[:mapperMessage]
}
