//go:build race

package rconn

const raceEnabled = true
