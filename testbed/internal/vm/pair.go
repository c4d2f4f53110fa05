package vm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// A pair is two machines joined by a cable, and what they ask of each other.
type pair struct {
	a, b *machine

	mu    sync.Mutex
	joins map[string]*[2]int // barrier -> how often A and B have come to it
}

// serve returns the answerer of m's requests.
func (p *pair) serve(m *machine) func([]string) (string, error) {
	side, peer := 0, p.b
	if m == p.b {
		side, peer = 1, p.a
	}
	return func(words []string) (string, error) {
		switch request := strings.Join(words, " "); {
		case request == "cable down" || request == "cable up":
			return "ok", p.setLink(words[1] == "up")
		case request == "peer kill":
			peer.endWith(errKilled)
			peer.kill()
			return "ok", nil
		case len(words) == 2 && words[0] == "join":
			return strconv.Itoa(p.join(side, words[1])), nil
		case len(words) == 3 && words[0] == "met":
			turn, err := strconv.Atoi(words[2])
			if err != nil {
				return "", err
			}
			if p.met(side, words[1], turn) {
				return "yes", nil
			}
			if peer.hasEnded() {
				return "", errors.New("the peer has ended")
			}
			return "no", nil
		default:
			return "", fmt.Errorf("unknown request %q", request)
		}
	}
}

// setLink sets both ends, so that each guest loses its carrier.
func (p *pair) setLink(up bool) error {
	var errs []error
	for _, m := range []*machine{p.a, p.b} {
		if !m.hasEnded() {
			errs = append(errs, m.monitor.setLink(up))
		}
	}
	return errors.Join(errs...)
}

// join counts side as come to the barrier and returns for the how manieth time.
func (p *pair) join(side int, name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.joins[name] == nil {
		p.joins[name] = new([2]int)
	}
	p.joins[name][side]++
	return p.joins[name][side]
}

// met reports whether the other side has come as often.
func (p *pair) met(side int, name string, turn int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	joins := p.joins[name]
	return joins != nil && joins[1-side] >= turn
}
