package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// serveControl answers the requests of m's guest, a line each. Requests that
// concern a peer are for other to answer.
func (m *machine) serveControl(conn io.ReadWriter, other func(words []string) (string, error)) {
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		answer, err := m.control(strings.Fields(lines.Text()), other)
		if err != nil {
			answer = "error: " + err.Error()
		}
		if _, err := fmt.Fprintln(conn, answer); err != nil {
			return
		}
	}
}

func (m *machine) control(words []string, other func([]string) (string, error)) (string, error) {
	switch {
	case len(words) == 1 && words[0] == "ready":
		if m.spec.OnStart != nil {
			m.spec.OnStart()
		}
		return "ok", nil
	case len(words) == 2 && words[0] == "exit":
		status, err := strconv.Atoi(words[1])
		if err != nil {
			return "", err
		}
		m.endWith(exitStatus(status))
		return "ok", nil
	}
	return other(words)
}

// noPeer answers requests that need a peer in a guest that has none.
func noPeer([]string) (string, error) {
	return "", errors.New("this guest has no peer; see vm-pair")
}
