package compat

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What README.md shows is a diff from a stock net/http program to one of ours: one line, and its import.
func TestDiffsInREADME(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	for _, program := range []string{"server", "client"} {
		shown := diffOf(t, string(readme), program)
		var before, after strings.Builder
		changed := 0
		for line := range strings.Lines(shown) {
			text := line[1:]
			if line == "\n" { // an editor has cut the blank
				text = line
			}
			if line[0] != '+' {
				before.WriteString(text)
			}
			if line[0] != '-' {
				after.WriteString(text)
			}
			if code := strings.TrimSpace(text); line[0] == '+' && code != "" && code != `"github.com/rconn/rdma/compat"` {
				changed++
			}
		}
		require.Equal(t, 1, changed, program)
		for name, want := range map[string]string{"stock.go": before.String(), "compat.go": after.String()} {
			source, err := os.ReadFile(filepath.Join("testdata", program, name))
			require.NoError(t, err)
			require.Equal(t, string(source), want, "%s/%s", program, name)
		}
	}
}

// diffOf is the diff that begins with the first line of a program.
func diffOf(t *testing.T, readme, program string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", program, "stock.go"))
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(source), "\n")
	_, block, found := strings.Cut(readme, "```diff\n "+first+"\n")
	require.True(t, found, "README.md has not the diff of the %s: diff -U100 stock.go compat.go", program)
	block, _, _ = strings.Cut(block, "```")
	return " " + first + "\n" + block
}
