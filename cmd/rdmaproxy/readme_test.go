package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The command lines of README.md are understood, and its tables name what there is.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	lines := regexp.MustCompile(`(?m)^(?:ExecStart=/usr/local/bin/)?rdmaproxy (.*)$`).FindAllSubmatch(text, -1)
	require.Len(t, lines, 5)
	for _, line := range lines {
		_, err := parse(strings.Fields(string(line[1])), io.Discard)
		require.NoError(t, err, "%s", line[0])
	}
	for k := range kinds {
		require.Contains(t, string(text), "`"+k.String()+"`")
	}
	for _, m := range metrics {
		name := strings.TrimPrefix(m.name, "connections")
		require.True(t, strings.Contains(string(text), "`rdmaproxy_"+m.name) || strings.Contains(string(text), "`"+name+"`"), m.name)
	}
}
