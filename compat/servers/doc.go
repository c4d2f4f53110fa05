// Package servers has tests alone: servers and clients that others wrote, unchanged, on connections of package compat. Each row of the
// matrix in docs/compat.md is a test. A row runs on plain TCP first, which shows what its library does anyway, then on RDMA, then on
// RDMA with rings of 4 KiB; on the last two all it does must leave nothing behind.
//
// Without more the tests use the software device on loopback. RDMA_ADDR is the address to use instead, as guests of the test bed have it,
// and RCONN_DEVICE the name of the device that serves it.
package servers
