package main

import (
	"fmt"
	"time"
)

// account is what lending costs the owner. Making connections and ending them does cost something; so it also looks at the longest time between
// two of those, when all that happened were others' operations.
type account struct {
	lent, last       moment
	conns            int // made
	quiet, quietUsed time.Duration
}

// moment is a time and the processor time used until then.
type moment struct {
	at  time.Time
	cpu time.Duration
}

// changed hears how many connections there are from now on, and tells the account when there are none.
func (a *account) changed(conns int, at time.Time, cpu time.Duration) {
	now := moment{at, cpu}
	if a.lent.at.IsZero() {
		a.lent, a.last = now, now
	}
	if quiet := at.Sub(a.last.at); quiet > a.quiet {
		a.quiet, a.quietUsed = quiet, cpu-a.last.cpu
	}
	a.last = now
	if a.conns++; conns == 0 {
		fmt.Println(a.text(now))
		*a = account{}
	}
}

func (a *account) text(now moment) string {
	share := func(used, took time.Duration) string {
		return fmt.Sprintf("%.3f s of CPU (%.1f%%)", used.Seconds(), 100*used.Seconds()/max(took.Seconds(), 1e-9))
	}
	took := now.at.Sub(a.lent.at)
	return fmt.Sprintf("owner: lent for %.2f s: %s, with %d connections; longest time without connecting: %.2f s, %s",
		took.Seconds(), share(now.cpu-a.lent.cpu, took), a.conns/2, a.quiet.Seconds(), share(a.quietUsed, a.quiet))
}
