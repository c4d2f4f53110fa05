//go:build guest

package tests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/internal/checks/devtable"
)

// The table of devices in docs/verbs.md says what the kernel's devices say.
func TestBothTableOfDocs(t *testing.T) {
	column := os.Getenv("RDMA_DEV")
	dev, err := rdma.Open(column + "0")
	require.NoError(t, err)
	differ, err := devtable.Differences(filepath.Join(os.Getenv("REPO"), "docs", "verbs.md"), column, dev)
	require.NoError(t, err)
	require.Empty(t, differ)
}
