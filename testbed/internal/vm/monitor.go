package vm

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

// A monitor speaks QMP to one QEMU.
type monitor struct {
	mu     sync.Mutex
	conn   io.ReadWriter
	lines  *bufio.Scanner
	polite bool // has negotiated
}

func newMonitor(conn io.ReadWriter) *monitor {
	return &monitor{conn: conn, lines: bufio.NewScanner(conn)}
}

// setLink plugs the cable in or out, on QEMU's side.
func (m *monitor) setLink(up bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.polite {
		if err := m.execute("qmp_capabilities", nil); err != nil {
			return err
		}
		m.polite = true
	}
	return m.execute("set_link", map[string]any{"name": "cable", "up": up})
}

// execute sends a command and awaits its answer, past QEMU's greeting and events.
func (m *monitor) execute(command string, arguments map[string]any) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(m.conn).Encode(request); err != nil {
		return err
	}
	for m.lines.Scan() {
		var answer struct {
			Return *json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := json.Unmarshal(m.lines.Bytes(), &answer); err != nil {
			return err
		}
		switch {
		case answer.Error != nil:
			return errors.New(answer.Error.Desc)
		case answer.Return != nil:
			return nil
		}
	}
	return errors.Join(io.ErrUnexpectedEOF, m.lines.Err())
}
